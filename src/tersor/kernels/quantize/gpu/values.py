"""Values in Triton: read, quantized, dequantized and written; device functions that all kernels share.

int32 values are codes already, which quantize and dequantize to themselves.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from tersor.kernels.quantize.grid import F32_LIMITS, F64_LIMITS
from tersor.kernels.runtime.gpu.element_types import BF16, F16, F32, F64, I32

_F32_RADIUS, _F64_RADIUS = tl.constexpr(F32_LIMITS.radius), tl.constexpr(F64_LIMITS.radius)
# adding and subtracting these rounds to the nearest integer, ties to even
_F32_MAGIC, _F64_MAGIC = tl.constexpr(1.5 * 2.0**23), tl.constexpr(1.5 * 2.0**52)
SHIFT = tl.constexpr(0x4B400000)
"""The bits of the magic number of float32: what the bits of a sum with it are above the code."""
LEAST_SHIFTED = tl.constexpr(0x4B400000 - F32_LIMITS.radius)
MOST_SHIFTED = tl.constexpr(0x4B400000 + F32_LIMITS.radius)
LARGEST_CODE, SMALLEST_CODE = tl.constexpr((1 << 31) - 1), tl.constexpr(-(1 << 31))
"""What the smallest and the largest of no codes are."""
_TWO_23, _TWO_23_BITS = tl.constexpr(2.0**23), tl.constexpr(0x4B000000)


@triton.jit
def _places(pointer, position, ALIGNED: tl.constexpr):
    """Return where the values lie; the compiler forgets what it knew of an address otherwise."""
    places = pointer + position
    if ALIGNED and len(position.shape) == 1:
        places = tl.multiple_of(places, 16)
    elif ALIGNED and len(position.shape) == 2:
        places = tl.multiple_of(places, (16, 16))
    elif ALIGNED and len(position.shape) == 3:
        places = tl.multiple_of(places, (16, 16, 16))
    return places


@triton.jit
def _load(pointer, position, count, fill, ALIGNED: tl.constexpr, WHOLE: tl.constexpr):
    places = _places(pointer, position, ALIGNED)
    if WHOLE:
        return tl.load(places)
    else:
        return tl.load(places, mask=position < count, other=fill)


@triton.jit
def load_values(
    address, position, count, fill, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Return values at ``address`` in float32, or float64 for float64; ``fill`` from ``count`` on.

    Codes stay int32, and are 0 from there on.

    ``ALIGNED`` says that the address is a multiple of 16, ``WHOLE`` that all positions lie below
    the count: only then loads are 16 bytes wide, as a mask might end within them.
    """
    if TYPE == F64:
        pointer = address.to(tl.pointer_type(tl.float64))
        return _load(pointer, position, count, fill, ALIGNED, WHOLE)
    elif TYPE == F32:
        pointer = address.to(tl.pointer_type(tl.float32))
        return _load(pointer, position, count, fill, ALIGNED, WHOLE)
    elif TYPE == F16:
        pointer = address.to(tl.pointer_type(tl.float16))
        return _load(pointer, position, count, fill, ALIGNED, WHOLE).to(tl.float32)
    elif TYPE == I32:
        pointer = address.to(tl.pointer_type(tl.int32))
        return _load(pointer, position, count, 0, ALIGNED, WHOLE)
    else:
        pointer = address.to(tl.pointer_type(tl.int16))
        bits = _load(pointer, position, count, 0, ALIGNED, WHOLE)
        values = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        return values if WHOLE else tl.where(position < count, values, fill)


@triton.jit
def _rounded_bf16_bits(values):
    """Return the upper 16 bits of float32 values rounded to bfloat16; not for NaN."""
    bits = values.to(tl.uint32, bitcast=True)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@triton.jit
def _store(pointer, position, values, count, ALIGNED: tl.constexpr, WHOLE: tl.constexpr):
    places = _places(pointer, position, ALIGNED)
    if WHOLE:
        tl.store(places, values)
    else:
        tl.store(places, values, mask=position < count)


@triton.jit
def store_values(
    address, position, values, count, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Round values to the dtype of ``TYPE`` and store them as ``load_values`` reads; not for NaN."""
    if TYPE == F64:
        _store(address.to(tl.pointer_type(tl.float64)), position, values, count, ALIGNED, WHOLE)
    elif TYPE == F32:
        _store(address.to(tl.pointer_type(tl.float32)), position, values, count, ALIGNED, WHOLE)
    elif TYPE == F16:
        halves = values.to(tl.float16)
        _store(address.to(tl.pointer_type(tl.float16)), position, halves, count, ALIGNED, WHOLE)
    elif TYPE == I32:
        _store(address.to(tl.pointer_type(tl.int32)), position, values, count, ALIGNED, WHOLE)
    else:
        bits = _rounded_bf16_bits(values).to(tl.int16)
        _store(address.to(tl.pointer_type(tl.int16)), position, bits, count, ALIGNED, WHOLE)


@triton.jit
def store_nonzero_values(
    address, position, values, count, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Store float32 values as ``store_values`` does; float16 gets no infinity, and zeros for zeros alone."""
    if TYPE == F64:
        store_values(address, position, values.to(tl.float64), count, TYPE, ALIGNED, WHOLE)
    elif TYPE == F16:
        halves = tl.minimum(tl.maximum(values, -65504.0), 65504.0).to(tl.float16)
        bits = halves.to(tl.int16, bitcast=True)
        bits |= ((halves == 0) & (values != 0)).to(tl.int16)
        _store(address.to(tl.pointer_type(tl.int16)), position, bits, count, ALIGNED, WHOLE)
    else:
        store_values(address, position, values, count, TYPE, ALIGNED, WHOLE)


@triton.jit
def _quantize_floats(values, step, inverse, bound, TYPE: tl.constexpr):
    magic: tl.constexpr = _F64_MAGIC if TYPE == F64 else _F32_MAGIC
    radius: tl.constexpr = _F64_RADIUS if TYPE == F64 else _F32_RADIUS
    shifted = values * inverse + magic
    scaled = shifted - magic
    decoded = scaled * step
    if TYPE == F16:
        decoded = decoded.to(tl.float16).to(tl.float32)
    if TYPE == BF16:
        decoded = (_rounded_bf16_bits(decoded) << 16).to(tl.float32, bitcast=True)
    # NaN compares false, so it is an outlier
    holds = (tl.abs(values - decoded) <= bound) & (tl.abs(scaled) <= radius)
    # within the radius the code stands in the low bits; a conversion would be four times slower
    if TYPE == F64:
        codes = shifted.to(tl.int64, bitcast=True).to(tl.int32)
    else:
        codes = shifted.to(tl.int32, bitcast=True) - SHIFT
    return tl.where(holds, codes, 0), holds


@triton.jit
def quantize_values(values, step, inverse, bound, TYPE: tl.constexpr):
    """Return int32 codes and whether each decodes to within the bound; codes are 0 where not."""
    if TYPE == I32:
        return values, values * 0 == 0
    else:
        return _quantize_floats(values, step, inverse, bound, TYPE)


@triton.jit
def shifted_codes(values, step, inverse, TYPE: tl.constexpr):
    """Return codes plus ``SHIFT``, and the errors of the decoded values.

    Not for float64. Where an error is within the bound and the shifted code between ``LEAST_SHIFTED``
    and ``MOST_SHIFTED``, both are right; what has no code has an error above any bound, or NaN, or lies
    outside of these. The lowest 12 bits are those of the code.
    """
    shifted = values * inverse + _F32_MAGIC
    decoded = (shifted - _F32_MAGIC) * step
    if TYPE == F16:
        decoded = decoded.to(tl.float16).to(tl.float32)
    if TYPE == BF16:
        decoded = (_rounded_bf16_bits(decoded) << 16).to(tl.float32, bitcast=True)
    return shifted.to(tl.int32, bitcast=True), tl.abs(values - decoded)


@triton.jit
def quantize_fields(values, step, inverse, TYPE: tl.constexpr):
    """Return zigzag fields (0, -1, 1, -2 become 0, 1, 2, 3) and the errors of the decoded values.

    Not for float64. Where an error is within the bound and the field below 2**22, both are right;
    what has no code has an error above any bound, or NaN, or a larger field. NaN is not looked for.
    """
    scaled = (values * inverse + _F32_MAGIC) - _F32_MAGIC
    decoded = scaled * step
    if TYPE == F16:
        decoded = decoded.to(tl.float16).to(tl.float32)
    if TYPE == BF16:
        decoded = (_rounded_bf16_bits(decoded) << 16).to(tl.float32, bitcast=True)
    # |2 * code + 1/2| - 1/2 is the field; added to 2**23, it stands in the low bits
    doubled = tl.abs(tl.fma(scaled, 2.0, 0.5)) + (_TWO_23 - 0.5)
    fields = doubled.to(tl.uint32, bitcast=True) - _TWO_23_BITS
    return fields, tl.abs(values - decoded)


@triton.jit
def as_float(codes, TYPE: tl.constexpr):
    """Return small int32 codes, below 2**22, in the compute dtype, by the same trick backwards."""
    if TYPE == F64:
        return codes.to(tl.float64)
    else:
        return (codes + SHIFT).to(tl.float32, bitcast=True) - _F32_MAGIC


@triton.jit
def dequantize_values(codes, step, TYPE: tl.constexpr, SMALL: tl.constexpr):
    """Return what ``store_values`` takes; ``SMALL`` says that all codes are below 2**22."""
    if TYPE == I32:
        return codes
    elif SMALL:
        return as_float(codes, TYPE) * step
    else:
        return codes.to(step.dtype) * step


@triton.jit
def as_compute(value, TYPE: tl.constexpr):
    """Return a float64 as the dtype that values of ``TYPE`` are computed in."""
    return value if TYPE == F64 else value.to(tl.float32)


def bits_of(number: float) -> int:
    """Return a float64's bits: a kernel takes floats in float32 only, but integers of 64 bits."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


@triton.jit
def from_bits(bits, TYPE: tl.constexpr):
    """Return the number with these float64 bits in the compute dtype of ``TYPE``."""
    number = bits.to(tl.int64).to(tl.float64, bitcast=True)
    return number if TYPE == F64 else number.to(tl.float32)
