"""What the conformance matrix runs: for every operation, its arguments on the shared inputs.

A case is a label and the arguments on the CPU. Decoding cases take their bytes from each of the
given encoder backends, once where both wrote the same. ``Out`` stands for a fresh tensor that the operation writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.entropy.huffman import huffman_encode
from tersor.kernels.entropy.rans import rans_encode
from tersor.kernels.entropy.rans import reference as rans
from tersor.kernels.entropy.symbols import Symbols
from tersor.kernels.entropy.symbols import reference as symbols
from tersor.kernels.entropy.symbols.alphabet import Window
from tersor.kernels.group.cast import scaled_cast
from tersor.kernels.pack.blocks import pack, quantize_pack
from tersor.kernels.pack.delta import delta_pack
from tersor.kernels.pack.fields import pack_fields
from tersor.kernels.quantize import Grid
from tersor.kernels.quantize import reference as quantize
from tersor.kernels.runtime.op import Op
from tersor.types import FLOAT_DTYPES, Bound
from tests import data


@dataclass(frozen=True)
class Out:
    """A tensor to write into, made anew for every run: NaN, unless it holds something before."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    before: Tensor | None = None


Case = tuple[str, tuple[Any, ...]]
Encoders = dict[str, Callable[[Op], Callable[..., Any]]]
Builder = Callable[[torch.dtype, Encoders], Iterator[Case]]
_CODE_DTYPES: Final = (torch.float32, torch.float64)
CASES: Final[dict[str, tuple[Builder, tuple[torch.dtype, ...]]]] = {}


def case(*names: str, dtypes: tuple[torch.dtype, ...] = FLOAT_DTYPES) -> Any:
    """Register the decorated builder under the names of its operations."""

    def add(builder: Builder) -> Builder:
        CASES.update(dict.fromkeys(names, (builder, dtypes)))
        return builder

    return add


RARE: Final = "rare "
"""Starts the label of a case of a product, each option of which other cases have: those are slow tests."""


def rare_if(label: str, is_rare: bool) -> str:
    """Return the label, marked where the case is rare."""
    return f"{RARE}{label}" if is_rare else label


@cache
def float_inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    """Shared inputs, and one that is long enough for several chunks of every coder."""
    noise = torch.randn(40_001, generator=torch.Generator().manual_seed(1))
    return {**data.inputs(dtype), "several_chunks": noise.to(dtype)}


def grids(x: Tensor) -> Iterator[tuple[str, Grid]]:
    """Grids from coarse to fine; what is too fine to quantize has none.

    The last has the step of float32, whose levels other dtypes round, so that some are outliers.
    """
    finite = x[torch.isfinite(x)].double()
    width = Bound.relative(1.0)
    ends = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    for label, bound, dtype in (
        ("relative 1e-2", 1e-2 * width.resolve(*ends), x.dtype),
        ("relative 1e-5", 1e-5 * width.resolve(*ends), x.dtype),
        ("absolute 0.1", 0.1, torch.promote_types(x.dtype, torch.float32)),
    ):
        grid = Grid.for_bound(bound, dtype)
        if grid is not None:
            yield label, grid


@cache
def code_inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    """Codes of the shared inputs, and codes that no quantizer makes."""
    found, seen = {}, set()
    for name, x in float_inputs(dtype).items():
        for label, grid in grids(x):
            codes = quantize.bounded_quantize(x, grid)[0].view(x.shape)
            key = (codes.shape, codes.numpy().tobytes())
            # float64 adds codes that float32 cannot have, and a few to compare with
            if key not in seen and (dtype == torch.float32 or label == "relative 1e-5"):
                found[f"{name} {label}"] = codes
            seen.add(key)
    if dtype == torch.float64:
        return found
    generator = torch.Generator().manual_seed(2)
    limits = (-(2**31), 2**31)
    spread = torch.randn(40_003, generator=generator)
    found |= {
        "full range": torch.randint(*limits, (4099,), generator=generator, dtype=torch.int32),
        "extremes": torch.tensor([limits[0], limits[1] - 1] * 700, dtype=torch.int32),
        "wide alphabet": (spread * 300).to(torch.int32),
        "escapes": torch.where(spread > 3.4, 10_000_000, spread * 20).to(torch.int32),
        "wide alphabet with escapes": (spread[:9000] ** 3 * 2000).to(torch.int32),
    }
    return found


def _flat_codes(dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    return ((name, codes.reshape(-1)) for name, codes in code_inputs(dtype).items())


def encodings(encoders: Encoders, op: Op, *arguments: Any) -> Iterator[tuple[str, Any]]:
    """Yield what each backend makes of the arguments, unless another made the same bytes."""
    seen = set()
    for backend, encode in encoders.items():
        made = encode(op)(*arguments)
        if made is None:
            continue
        key = b"|".join(
            part.clone().reshape(-1).view(torch.uint8).numpy().tobytes()
            for part in _tensors(made)
            if part.numel()
        )
        if key not in seen:
            yield f"by {backend}", made
        seen.add(key)


def _tensors(made: Any) -> Iterator[Tensor]:
    if isinstance(made, Tensor):
        yield made
    elif isinstance(made, tuple | list):
        for part in made:
            yield from _tensors(part)


def _packings() -> Iterator[tuple[str, tuple[int, bool]]]:
    return ((f"block {b} base {base}", (b, base)) for b in (32, 64) for base in (False, True))


@case("finite_range")
def _finite_range(dtype, encoders):
    return ((name, (x,)) for name, x in float_inputs(dtype).items())


@case("bounded_quantize")
def _bounded_quantize(dtype, encoders):
    for name, x in float_inputs(dtype).items():
        for label, grid in grids(x):
            yield f"{name} {label}", (x, grid)


@case("bounded_dequantize")
def _bounded_dequantize(dtype, encoders):
    for name, codes in _flat_codes(torch.float32):
        yield name, (codes, 0.75, Out(tuple(codes.shape), dtype))


@case("quantize_symbols")
def _quantize_symbols(dtype, encoders):
    for name, x in float_inputs(dtype).items():
        finite = x[torch.isfinite(x)].double()
        ends = (float(finite.min()), float(finite.max())) if finite.numel() else (1.0, -1.0)
        for label, grid in grids(x):
            yield f"{name} {label}", (x, grid, *ends)


@case("dequantize_symbols")
def _dequantize_symbols(dtype, encoders):
    for name, mapped in _mapped(torch.float32):
        yield name, (mapped.symbols, mapped, 0.375, Out((mapped.symbols.numel(),), dtype))


@case("quantize_pack")
def _quantize_pack(dtype, encoders):
    for name, arguments in _bounded_quantize(dtype, encoders):
        for label, packing in _packings():
            yield f"{name} {label}", (*arguments, *packing)


@case("unpack_dequantize")
def _unpack_dequantize(dtype, encoders):
    for name, (x, grid, *packing) in _quantize_pack(dtype, encoders):
        out = Out((x.numel(),), dtype)
        for by, (body, _) in encodings(encoders, quantize_pack, x, grid, *packing):
            yield f"{name} {by}", (body, grid.step, out, *packing)


@case("delta_pack")
def _delta_pack(dtype, encoders):
    for name, arguments in _bounded_quantize(dtype, encoders):
        for block in (32, 64):
            yield f"{name} block {block}", (*arguments, block)


@case("delta_unpack")
def _delta_unpack(dtype, encoders):
    for name, (x, grid, block) in _delta_pack(dtype, encoders):
        out = Out((x.numel(),), dtype)
        for by, (body, _) in encodings(encoders, delta_pack, x, grid, block):
            yield f"{name} {by}", (body, grid.step, out, block)


@case("pack", dtypes=_CODE_DTYPES)
def _pack(dtype, encoders):
    for name, codes in _flat_codes(dtype):
        for label, packing in _packings():
            yield f"{name} {label}", (codes, *packing)


@case("unpack", dtypes=_CODE_DTYPES)
def _unpack(dtype, encoders):
    for name, (codes, *packing) in _pack(dtype, encoders):
        for by, body in encodings(encoders, pack, codes, *packing):
            yield f"{name} {by}", (body, codes.numel(), *packing)


@case("pack_fields", dtypes=_CODE_DTYPES[:1])
def _pack_fields(dtype, encoders):
    for name, codes in _flat_codes(dtype):
        for width in (0, 1, 7, 19, 31):
            yield f"{name} width {width}", (codes & ((1 << width) - 1), width)


@case("unpack_fields", dtypes=_CODE_DTYPES[:1])
def _unpack_fields(dtype, encoders):
    for name, (values, width) in _pack_fields(dtype, encoders):
        for by, packed in encodings(encoders, pack_fields, values, width):
            yield f"{name} {by}", (packed, values.numel(), width)


@case("lorenzo_residual", "lorenzo_restore", dtypes=_CODE_DTYPES)
def _lorenzo(dtype, encoders):
    for name, codes in code_inputs(dtype).items():
        for dims in range(1, min(3, codes.dim()) + 1):
            yield f"{name} dims {dims}", (codes, dims)


@case("map_symbols", dtypes=_CODE_DTYPES)
def _map_symbols(dtype, encoders):
    for name, codes in _flat_codes(dtype):
        yield name, (codes,)
        yield f"{name} given window", (codes, Window(-100, 201, escapes=True))


def _mapped(dtype: torch.dtype) -> Iterator[tuple[str, Symbols]]:
    for name, codes in _flat_codes(dtype):
        yield name, symbols.map_symbols(codes)


@case("unmap_symbols", dtypes=_CODE_DTYPES)
def _unmap_symbols(dtype, encoders):
    for name, mapped in _mapped(dtype):
        yield name, (mapped.symbols, mapped)


def _few_blocks(name: str, mapped: Symbols) -> Symbols:
    """Cut all but one of the long inputs: Triton's interpreter takes 10 ms for 32 symbols."""
    num_values = 1 << 30 if name == "several_chunks relative 1e-2" else 9000
    inside = mapped.escape_positions < num_values
    return replace(
        mapped,
        symbols=mapped.symbols[:num_values],
        escape_positions=mapped.escape_positions[inside],
        escape_codes=mapped.escape_codes[inside],
    )


@case("huffman_encode", dtypes=_CODE_DTYPES)
def _huffman_encode(dtype, encoders):
    for name, mapped in _mapped(dtype):
        yield name, (_few_blocks(name, mapped).symbols, mapped.alphabet)


@case("huffman_decode", dtypes=_CODE_DTYPES)
def _huffman_decode(dtype, encoders):
    for name, (mapped, alphabet) in _huffman_encode(dtype, encoders):
        for by, body in encodings(encoders, huffman_encode, mapped, alphabet):
            yield f"{name} {by}", (body, mapped.numel(), alphabet)


@case("rans_encode", dtypes=_CODE_DTYPES)
def _rans_encode(dtype, encoders):
    for name, mapped in _mapped(dtype):
        few = _few_blocks(name, mapped).symbols
        yield name, (few, mapped.alphabet)
        if mapped.alphabet == 256:
            table = torch.full((256,), 16, dtype=torch.int64)
            yield f"{name} static", (few, mapped.alphabet, table)


@case("rans_decode", dtypes=_CODE_DTYPES)
def _rans_decode(dtype, encoders):
    for name, (mapped, *rest) in _rans_encode(dtype, encoders):
        for by, body in encodings(encoders, rans_encode, mapped, *rest):
            yield f"{name} {by}", (body, mapped.numel(), *rest)


@case("rans_decode_dequantize")
def _rans_decode_dequantize(dtype, encoders):
    for name, whole in _mapped(torch.float32):
        mapped = _few_blocks(name, whole)
        # what the dtype changes shows on short inputs too
        if dtype != torch.float32 and mapped.symbols.numel() > 1000:
            continue
        tables = [torch.full((256,), 16, dtype=torch.int64)] if mapped.alphabet == 256 else []
        for rest in ((), *((table,) for table in tables)):
            body = rans.rans_encode(mapped.symbols, mapped.alphabet, *rest)
            out = Out((mapped.symbols.numel(),), dtype)
            yield f"{name} {len(rest)}", (body, mapped, 0.375, out, *rest)


@case("unique_rows", dtypes=_CODE_DTYPES[:1])
def _unique_rows(dtype, encoders):
    for name, x in float_inputs(dtype).items():
        as_bytes = torch.empty(0, dtype=torch.uint8)
        if x.numel():
            as_bytes = x.contiguous().view(-1).view(torch.uint8)
        for width in (1, 3, 8, 40, 256):
            num_rows = as_bytes.numel() // width
            yield f"{name} width {width}", (as_bytes[: num_rows * width].view(num_rows, width),)
    yield "rows without bytes", (torch.zeros(5, 0, dtype=torch.uint8),)


def in_groups(group: int) -> Iterator[tuple[str, Tensor]]:
    """Yield shared inputs, flat and filled up with zeros to whole groups."""
    for name, x in float_inputs(torch.float32).items():
        values = x.contiguous().view(-1)
        yield name, torch.cat([values, values.new_zeros(-values.numel() % group)])


@case("scaled_cast", dtypes=_CODE_DTYPES[:1])
def _scaled_cast(dtype, encoders):
    for target in (torch.float8_e4m3fn, torch.float8_e5m2):
        for group in (1, 96):
            for name, x in in_groups(group):
                yield f"{name} {target} {group}", (x, target, group)


@case("scaled_uncast", dtypes=_CODE_DTYPES[:1])
def _scaled_uncast(dtype, encoders):
    for name, (x, target, group) in _scaled_cast(dtype, encoders):
        for by, (scales, cast) in encodings(encoders, scaled_cast, x, target, group):
            yield f"{name} {by}", (cast, scales, group)


def fresh(argument: Any, device: torch.device) -> Any:  # noqa: PLR0911 - one per kind
    """Return the argument for one run on ``device``; whatever the run writes is its own."""
    if isinstance(argument, Out) and argument.before is not None:
        return argument.before.to(device, copy=True)
    if isinstance(argument, Out):
        if not argument.dtype.is_floating_point:
            return torch.ones(argument.shape, dtype=argument.dtype, device=device)
        return torch.full(argument.shape, torch.nan, dtype=argument.dtype, device=device)
    if isinstance(argument, Tensor):
        return argument.to(device, copy=True)
    if isinstance(argument, list):
        return [fresh(part, device) for part in argument]
    if isinstance(argument, EncodedList):
        return EncodedList.apart([fresh(payload, device) for payload in argument.payloads()])
    if isinstance(argument, Symbols):
        names = ("symbols", "escape_positions", "escape_codes")
        moved = {name: fresh(getattr(argument, name), device) for name in names}
        return replace(argument, **moved)
    return argument
