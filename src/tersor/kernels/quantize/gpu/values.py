"""Triton device functions, shared by all kernels, that load, quantize, dequantize and store values.

int32 values are already codes: quantizing and dequantizing leave them unchanged.
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
"""The bits of float32's magic number: the bits of ``code + magic`` are the code plus this."""
LEAST_SHIFTED = tl.constexpr(0x4B400000 - F32_LIMITS.radius)
MOST_SHIFTED = tl.constexpr(0x4B400000 + F32_LIMITS.radius)
LARGEST_CODE, SMALLEST_CODE = tl.constexpr((1 << 31) - 1), tl.constexpr(-(1 << 31))
"""Initial values of a minimum and of a maximum over codes."""
_TWO_23, _TWO_23_BITS = tl.constexpr(2.0**23), tl.constexpr(0x4B000000)


@triton.jit
def _places(pointer, position, ALIGNED: tl.constexpr):
    """Return pointers to the values, with their alignment restated: the compiler loses it otherwise."""
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
    """Load values at ``address`` in the compute dtype, and ``fill`` at positions from ``count`` on.

    The compute dtype is float32, or float64 for float64. Codes stay int32, with 0 from ``count`` on.

    ``ALIGNED`` promises that the address is a multiple of 16, ``WHOLE`` that all positions are below
    ``count``. Loads are 16 bytes wide only if both hold, because a mask might end within them.
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
    """Round values to ``TYPE`` and store them, with parameters as in ``load_values``; not for NaN."""
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
    """Store float32 values as ``store_values`` does, but in float16 saturate, and round no nonzero value to 0."""
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
    # within the radius the low bits hold the code; a conversion would be four times slower
    if TYPE == F64:
        codes = shifted.to(tl.int64, bitcast=True).to(tl.int32)
    else:
        codes = shifted.to(tl.int32, bitcast=True) - SHIFT
    return tl.where(holds, codes, 0), holds


@triton.jit
def quantize_values(values, step, inverse, bound, TYPE: tl.constexpr):
    """Return int32 codes, and whether each decodes to within the bound; the code is 0 if it does not."""
    if TYPE == I32:
        return values, values * 0 == 0
    else:
        return _quantize_floats(values, step, inverse, bound, TYPE)


@triton.jit
def shifted_codes(values, step, inverse, TYPE: tl.constexpr):
    """Return codes plus ``SHIFT``, and the errors of the decoded values; not for float64.

    Both are correct where the error is within the bound and the shifted code is between ``LEAST_SHIFTED``
    and ``MOST_SHIFTED``. For a value without a code the error exceeds any bound or is NaN, or the shifted
    code lies outside these limits. The lowest 12 bits are those of the code.
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

    Not for float64. Both are correct where the error is within the bound and the field is below 2**22.
    For a value without a code the error exceeds any bound or is NaN, or the field is larger. NaN values
    get no special treatment.
    """
    scaled = (values * inverse + _F32_MAGIC) - _F32_MAGIC
    decoded = scaled * step
    if TYPE == F16:
        decoded = decoded.to(tl.float16).to(tl.float32)
    if TYPE == BF16:
        decoded = (_rounded_bf16_bits(decoded) << 16).to(tl.float32, bitcast=True)
    # |2 * code + 1/2| - 1/2 is the field; adding 2**23 puts it into the low bits
    doubled = tl.abs(tl.fma(scaled, 2.0, 0.5)) + (_TWO_23 - 0.5)
    fields = doubled.to(tl.uint32, bitcast=True) - _TWO_23_BITS
    return fields, tl.abs(values - decoded)


@triton.jit
def as_float(codes, TYPE: tl.constexpr):
    """Convert int32 codes of magnitude below 2**22 to the compute dtype, inverting the shift trick."""
    if TYPE == F64:
        return codes.to(tl.float64)
    else:
        return (codes + SHIFT).to(tl.float32, bitcast=True) - _F32_MAGIC


@triton.jit
def dequantize_values(codes, step, TYPE: tl.constexpr, SMALL: tl.constexpr):
    """Return the values of codes, ready for ``store_values``; ``SMALL`` promises codes below 2**22."""
    if TYPE == I32:
        return codes
    elif SMALL:
        return as_float(codes, TYPE) * step
    else:
        return codes.to(step.dtype) * step


@triton.jit
def as_compute(value, TYPE: tl.constexpr):
    """Convert a float64 to the compute dtype of ``TYPE``."""
    return value if TYPE == F64 else value.to(tl.float32)


def bits_of(number: float) -> int:
    """Return the bits of a float64: kernels take 64-bit integers, but floats only as float32."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


@triton.jit
def from_bits(bits, TYPE: tl.constexpr):
    """Return the number with these float64 bits in the compute dtype of ``TYPE``."""
    number = bits.to(tl.int64).to(tl.float64, bitcast=True)
    return number if TYPE == F64 else number.to(tl.float32)
