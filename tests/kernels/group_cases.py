"""What the conformance matrix runs for operations on groups of values."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tersor.kernels.group import group_quantize
from tersor.kernels.group.masks import mask_quantize
from tersor.kernels.group.ranges import range_quantize
from tersor.kernels.group.reference import group_quantize as quantize_group
from tersor.kernels.group.rms import rms_quantize
from tersor.kernels.group.rms.layout import level_table
from tests.kernels.cases import CASES, Out, case, encodings, float_inputs, in_groups, rare_if

__all__ = ["CASES"]

_F32: Final = (torch.float32,)


def _whole_groups():
    for row, nbits in enumerate((4, 8)):
        for column, group in enumerate((2, 64, 130)):
            for name, x in in_groups(group):
                for turn, seed in enumerate((None, 0, 2**64 - 1)):
                    label = f"{name} {nbits} bits {group} seed {seed}"
                    yield rare_if(label, (row + column + turn) % 3 > 0), (x, nbits, group, seed)


# bits, group, seed, hadamard: groups of one row, of one pass, of two, and no power of two
_TRANSFORMED: Final = (
    (4, 128, 7, True),
    (8, 64, None, False),
    (4, 32, None, True),
    (8, 32, 1, True),
    (8, 2048, 2**40 + 1, True),
    (4, 192, None, True),
    (8, 96, None, True),
    (4, 4096, 3, False),
    (4, 10_000, None, False),
)


def _transformed(dtype: torch.dtype) -> tuple[tuple[int, int, int | None, bool], ...]:
    return _TRANSFORMED if dtype == torch.float32 else _TRANSFORMED[:2]


def _neighbours(x: Tensor) -> Tensor:
    """Return a base of the dtype and size of ``x``: differences cancel, and some overflow."""
    return x.roll(1)


@case("group_quantize")
def _group_quantize(dtype, encoders):
    if dtype == torch.float32:
        yield from _whole_groups()
    for number, options in enumerate(_transformed(dtype)):
        for name, x in float_inputs(dtype).items():
            flat = x.contiguous().view(-1)
            yield f"{name} {options}", (flat, *options)
            label = rare_if(f"{name} {options} less a base", number % 2 > 0)
            yield label, (flat, *options, None, _neighbours(flat))
    for options in _BY_ROWS:
        x = torch.randn(2, 3, 200, generator=torch.Generator().manual_seed(4)).to(dtype)
        x[1, 0, 7] = torch.nan
        yield f"short rows {options}", (x, *options)
        yield f"short few rows {options} less a base", (x[0], *options, None, x[1])


# as in _TRANSFORMED, for tensors of several rows that end inside a group
_BY_ROWS: Final = (
    (4, 128, 7, True),
    (8, 64, 2**40 + 1, False),
    (4, 32, None, True),
    (8, 96, 3, True),
)


@case("group_dequantize")
def _group_dequantize(dtype, encoders):
    for name, arguments in _whole_groups() if dtype == torch.float32 else ():
        for by, (scales, packed) in encodings(encoders, group_quantize, *arguments):
            yield f"{name} {by}", (packed, scales, *arguments[1:3])
    for number, (nbits, group, seed, hadamard) in enumerate(_transformed(dtype)):
        for name, x in float_inputs(torch.float32).items():
            arguments = (x.contiguous().view(-1), nbits, group, seed, hadamard)
            base = _neighbours(arguments[0].to(dtype))
            for by, (scales, packed) in encodings(encoders, group_quantize, *arguments):
                parts = (packed, scales, nbits, group, hadamard)
                label = f"{name} {arguments[1:]} {by}"
                yield label, (*parts, Out(tuple(base.shape), dtype))
                label = rare_if(f"{label} to a base", number % 2 > 0)
                yield label, (*parts, Out(tuple(base.shape), dtype, base), True)
    for nbits, group, hadamard in ((4, 128, True), (8, 32, False), (8, 22, False)):
        data, scales = _sent(nbits, group)
        count = data.shape[1] * 8 // nbits - 3
        parts = (data, scales, nbits, group, hadamard)
        yield f"sum {nbits} {group}", (*parts, Out((count,), dtype))
        base = torch.linspace(-40, 40, count).to(dtype)
        yield f"sum {nbits} {group} to a base", (*parts, Out((count,), dtype, base), True)
        rows = (data.unflatten(1, (4, -1)), scales.unflatten(1, (4, -1)))
        shape = (4, 5 * group - 3)
        yield f"short rows {nbits} {group}", (*rows, *parts[2:], Out(shape, dtype))
        base = torch.linspace(-40, 40, 4 * shape[1]).to(dtype).view(shape)
        yield f"rows {nbits} {group} to a base", (*rows, *parts[2:], Out(shape, dtype, base), True)


def _sent(nbits: int, group: int) -> tuple[Tensor, Tensor]:
    """Return what three senders quantized, with values that are not finite."""
    values = torch.randn(3, 20 * group, generator=torch.Generator().manual_seed(3))
    values *= torch.tensor([[1.0], [1e-3], [30.0]])
    values[:, 4 * group : 5 * group] = 0.0
    values[0, 5], values[1, group + 1] = torch.nan, torch.inf
    sent = [quantize_group(row, nbits, group) for row in values]
    return torch.stack([data for _, data in sent]), torch.stack([scales for scales, _ in sent])


@case("group_dequantize_sum_quantize", dtypes=_F32)
def _group_dequantize_sum_quantize(dtype, encoders):
    options = (
        (8, 4, 128, 11),
        (4, 8, 128, None),
        (4, 4, 32, 2**63),
        (8, 8, 32, None),
        (8, 4, 64, None),
        (8, 4, 1024, 0),
        (4, 8, 4096, None),
        (8, 4, 8192, None),
        (8, 4, 30, 5),
    )
    for number, (nbits, new_nbits, group, seed) in enumerate(options):
        label = f"{nbits} to {new_nbits} bits {group} seed {seed}"
        data, scales = _sent(nbits, group)
        yield label, (data, scales, nbits, group, new_nbits, seed)
        one_sender = data[:1], scales[:1], nbits, group, new_nbits, seed
        yield rare_if(f"{label} one sender", number % 3 > 0), one_sender
        rows = (data.unflatten(1, (4, -1)), scales.unflatten(1, (4, -1)))
        yield rare_if(f"{label} rows", number % 2 > 0), (*rows, nbits, group, new_nbits, seed)


@case("rms_quantize")
def _rms_quantize(dtype, encoders):
    for name, x in float_inputs(dtype).items():
        for step, zeros in ((1.0, None), (0.5, True), (0.13, False), (3.3, True)):
            if x.numel():
                yield f"{name} {step} {zeros}", (x.contiguous().view(-1), step, zeros)


@case("rms_dequantize")
def _rms_dequantize(dtype, encoders):
    for name, (x, step, zeros) in _rms_quantize(dtype, encoders):
        for by, codes in encodings(encoders, rms_quantize, x, step, zeros):
            levels = level_table(step, codes[2])
            yield f"{name} {by}", (codes[0], codes[1], levels, Out(tuple(x.shape), dtype))


def field_inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    """Groups of 256 values on which fields of few bits are decided by the last bit, or are no numbers."""
    k = torch.arange(256)
    # a scale of 1 in each group of mask4 or mask2, so that every value is a whole level
    whole = torch.cat([k % 16, k % 15 - 7, k % 4, k % 3 - 1])
    above = whole + torch.finfo(dtype).eps * (whole % 3 == 1) * whole.abs()
    halves = torch.cat([k % 7 * 0.5, k % 7 * 0.5 - 1.5, k % 13 * 0.25 - 3.0])[:-5]
    special = torch.randn(4 * 256 - 7, generator=torch.Generator().manual_seed(5)).to(dtype)
    special[:256] = special[:256].abs()
    special[3], special[300], special[301] = -torch.nan, -torch.inf, torch.finfo(dtype).max
    special[512:768] = -0.0
    special[768:770] = torch.tensor([torch.finfo(dtype).smallest_normal, -torch.finfo(dtype).max])
    special[770] = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    # the mean of the first group's smallest code is next to nothing, and float16 would make a zero of it in the second
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    smallest = torch.cat([1 + (k == 7) * 2**14, k % 101]).to(dtype) * tiny
    return {
        "short smallest": smallest,
        "short whole levels": whole.to(dtype),
        "short above levels": above.to(dtype),
        "short half levels": halves.to(dtype),
        "short specials": special,
        "short unaligned": special[1:],
        "short last values of a range": torch.tensor([2.0] * 256 + [-5.0, -5.25, -7.0]).to(dtype),
    }


@case("mask_quantize")
def _mask_quantize(dtype, encoders):
    for name, x in (float_inputs(dtype) | field_inputs(dtype)).items():
        for nbits in (2, 4):
            yield f"{name} {nbits} bits", (x.contiguous().view(-1), nbits)


@case("mask_dequantize")
def _mask_dequantize(dtype, encoders):
    for name, (x, nbits) in _mask_quantize(dtype, encoders):
        for by, payload in encodings(encoders, mask_quantize, x, nbits):
            yield f"{name} {by}", (payload, nbits, Out(tuple(x.shape), dtype))


@case("range_quantize")
def _range_quantize(dtype, encoders):
    for name, x in (float_inputs(dtype) | field_inputs(dtype)).items():
        for group, seed in ((256, None), (12, 2**64 - 1)):
            yield f"{name} {group} seed {seed}", (x.contiguous().view(-1), group, seed)
    # a group of several chunks of a GPU's program, and a part of one
    longer = torch.linspace(-3, 5, 9001).to(dtype)
    longer[8500] = torch.inf
    for group, seed in ((4100, 7), (8192, None)):
        yield f"long groups {group} seed {seed}", (longer, group, seed)


@case("range_dequantize")
def _range_dequantize(dtype, encoders):
    for name, (x, group, seed) in _range_quantize(dtype, encoders):
        for by, payload in encodings(encoders, range_quantize, x, group, seed):
            yield f"{name} {by}", (payload, group, Out(tuple(x.shape), dtype))


@case("hadamard", dtypes=_F32)
def _hadamard(dtype, encoders):
    for name, x in in_groups(32):
        yield name, (x,)
        yield f"{name} inverse", (x, True)
