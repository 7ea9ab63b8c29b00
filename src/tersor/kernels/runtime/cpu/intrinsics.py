"""The numba compiler and intrinsics that the CPU kernels use.

Raw loads and stores skip numba's index wraparound test: Huffman coding gains a factor of two.
The caller must have checked the address range.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm
import numba
import xxhash
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.core.caching import IndexDataCacheFile
from numba.extending import intrinsic

from tersor.kernels.runtime.cpu import compile_events

_KERNELS: Final = Path(__file__).parents[2]
HAS_BMI2 = bool(dict(llvm.get_host_cpu_features()).get("bmi2"))


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return ``numba.njit`` with these options and a disk cache keyed by the sources of all kernels.

    numba checks only the file that defines a function, not those it calls or takes constants from:
    after an update it would run stale code, or fail to load it. Where neither the package's folder nor
    the user's home is writable, as in some containers, every process compiles its kernels again instead
    of failing. Compilations are reported to ``compile_notice``.
    """
    compile_events.listen()

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return _cached_for_these_sources(numba.njit(**options)(function))
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return numba.njit(**{**options, "cache": False})(function)

    return compiled


def _cached_for_these_sources(dispatcher: Any) -> Any:
    """Give a dispatcher an index file whose name contains the digest of all kernel sources."""
    # numba has no public API for this; a dispatcher without these attributes is left unchanged
    own: Any = getattr(dispatcher, "_cache", None)
    if hasattr(own, "_cache_file") and hasattr(own, "_impl"):
        implementation = own._impl  # noqa: SLF001
        own._cache_file = IndexDataCacheFile(  # noqa: SLF001
            cache_path=implementation.locator.get_cache_path(),
            filename_base=f"{implementation.filename_base}-{sources_digest()}",
            source_stamp=implementation.locator.get_source_stamp(),
        )
    return dispatcher


@cache
def sources_digest() -> str:
    """Return a digest of the sources of all kernels, as 16 hexadecimal digits."""
    found = xxhash.xxh3_64()
    for path in sorted(_KERNELS.rglob("*.py")):
        found.update(path.read_bytes())
    return str(found.hexdigest())


@intrinsic
def address_of(typing_context: Any, array: Any) -> Any:
    """Return the address of an array's first byte as uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.uint64(array), codegen


@intrinsic
def _pointer_at(typing_context: Any, address: Any, like: Any) -> Any:
    """Return an address as a pointer to values of the dtype of the array ``like``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.uint64, like), codegen


@njit(nogil=True, cache=True)
def array_at(address: int, size: int, like: Any) -> Any:
    """Return the ``size`` values at ``address`` as an array of the dtype of ``like``."""
    return carray(_pointer_at(address, like), size)


def _loader(nbits: int, result: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(nbits).as_pointer())
            return builder.load(pointer, align=1)

        return result(types.uint64), codegen

    return load


def _storer(nbits: int, value_type: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(nbits).as_pointer())
            builder.store(args[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, value_type), codegen

    return store


load_u16 = _loader(16, types.uint16)
load_u32 = _loader(32, types.uint32)
load_u64 = _loader(64, types.uint64)
store_byte = _storer(8, types.uint8)
store_u16 = _storer(16, types.uint16)
store_u32 = _storer(32, types.uint32)
store_u64 = _storer(64, types.uint64)


@intrinsic
def bits_of(typing_context: Any, value: Any) -> Any:
    """Return the bits of a float as an unsigned integer of the same width."""
    result = {types.float32: types.uint32, types.float64: types.uint64}[value]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(result.bitwidth))

    return result(value), codegen


@intrinsic
def count_leading_zeros(typing_context: Any, value: Any) -> Any:
    """Return the number of leading zero bits of a uint64; 64 for zero."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


def _bmi2(name: str) -> Any:
    @intrinsic
    def instruction(typing_context: Any, value: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(word, [word, word]), name
            )
            return builder.call(function, args)

        return types.uint64(types.uint64, types.uint64), codegen

    return instruction


_pext = _bmi2("llvm.x86.bmi.pext.64")
_pdep = _bmi2("llvm.x86.bmi.pdep.64")
_U = types.uint64


@njit(nogil=True, cache=True, inline="always")
def squeeze_bytes_bmi2(word: int, width: int) -> int:
    """Pack the low ``width`` bits of each of eight bytes into the low ``8 * width`` bits."""
    return _pext(word, ((_U(1) << width) - _U(1)) * _U(0x0101010101010101))


@njit(nogil=True, cache=True, inline="always")
def spread_bytes_bmi2(word: int, width: int) -> int:
    """Invert ``squeeze_bytes``; higher bits of ``word`` are ignored."""
    return _pdep(word, ((_U(1) << width) - _U(1)) * _U(0x0101010101010101))


@njit(nogil=True, cache=True, inline="always")
def squeeze_bytes_portable(word: int, width: int) -> int:
    """Do the same as ``squeeze_bytes_bmi2``, by halving the number of gaps three times."""
    y = (word & _U(0x00FF00FF00FF00FF)) | ((word & _U(0xFF00FF00FF00FF00)) >> (_U(8) - width))
    y = (y & _U(0x0000FFFF0000FFFF)) | ((y & _U(0xFFFF0000FFFF0000)) >> (_U(16) - _U(2) * width))
    return (y & _U(0xFFFFFFFF)) | ((y & _U(0xFFFFFFFF00000000)) >> (_U(32) - _U(4) * width))


@njit(nogil=True, cache=True, inline="always")
def spread_bytes_portable(word: int, width: int) -> int:
    """Do the same as ``spread_bytes_bmi2``, by doubling the number of gaps three times."""
    low4 = (_U(1) << (_U(4) * width)) - _U(1)
    low2 = ((_U(1) << (_U(2) * width)) - _U(1)) * _U(0x0000000100000001)
    low1 = ((_U(1) << width) - _U(1)) * _U(0x0001000100010001)
    y = (word & low4) | (((word >> (_U(4) * width)) & low4) << _U(32))
    y = (y & low2) | (((y >> (_U(2) * width)) & low2) << _U(16))
    return (y & low1) | (((y >> width) & low1) << _U(8))


@njit(nogil=True, cache=True, inline="always")
def squeeze_pairs_bmi2(word: int, width: int) -> int:
    """Pack the low ``width`` bits of each of four 16-bit lanes into ``4 * width`` bits."""
    return _pext(word, ((_U(1) << width) - _U(1)) * _U(0x0001000100010001))


@njit(nogil=True, cache=True, inline="always")
def spread_pairs_bmi2(word: int, width: int) -> int:
    """Invert ``squeeze_pairs``; higher bits of ``word`` are ignored."""
    return _pdep(word, ((_U(1) << width) - _U(1)) * _U(0x0001000100010001))


@njit(nogil=True, cache=True, inline="always")
def squeeze_pairs_portable(word: int, width: int) -> int:
    """Do the same as ``squeeze_pairs_bmi2``, by halving the number of gaps twice."""
    y = (word & _U(0x0000FFFF0000FFFF)) | ((word & _U(0xFFFF0000FFFF0000)) >> (_U(16) - width))
    return (y & _U(0xFFFFFFFF)) | ((y & _U(0xFFFFFFFF00000000)) >> (_U(32) - _U(2) * width))


@njit(nogil=True, cache=True, inline="always")
def spread_pairs_portable(word: int, width: int) -> int:
    """Do the same as ``spread_pairs_bmi2``, by doubling the number of gaps twice."""
    low2 = (_U(1) << (_U(2) * width)) - _U(1)
    low1 = ((_U(1) << width) - _U(1)) * _U(0x0000000100000001)
    y = (word & low2) | (((word >> (_U(2) * width)) & low2) << _U(32))
    return (y & low1) | (((y >> width) & low1) << _U(16))


# chosen once per process; numba's on-disk cache is keyed by processor model, so it stays valid
squeeze_bytes = squeeze_bytes_bmi2 if HAS_BMI2 else squeeze_bytes_portable
spread_bytes = spread_bytes_bmi2 if HAS_BMI2 else spread_bytes_portable
squeeze_pairs = squeeze_pairs_bmi2 if HAS_BMI2 else squeeze_pairs_portable
spread_pairs = spread_pairs_bmi2 if HAS_BMI2 else spread_pairs_portable
