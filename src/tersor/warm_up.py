"""Ahead-of-time compilation of kernels, by running them on small tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import torch

from tersor.codecs.auto import Auto
from tersor.codecs.codec import Codec
from tersor.codecs.registry import check_is_codec, create, get
from tersor.codecs.rows import Rows
from tersor.container import decode_batch, encode_batch
from tersor.errors import BackendUnavailableError, SpecError
from tersor.kernels.runtime.compile_notice import compile_seconds
from tersor.kernels.runtime.replay import REPLAYS
from tersor.types import Bound, TensorInfo, check_dtype

_FIXED_SIZE: Final = ("half", "bf16", "fp8", "group8", "group4", "mask4", "mask2", "group2")
_BOUNDS: Final = (
    Bound.absolute(0.05), Bound.relative(0.01), Bound.absolute(1e-4), Bound.relative(1e-5),
    Bound.relative(1e-3),
)  # fmt: skip
"""For each kind of bound, one with few codes and one with more codes than fused kernels support; and one with
more codes than a byte can hold."""

_ALPHABET_BOUNDS: Final = tuple(Bound.absolute(4 / 2 ** (k / 2)) for k in range(10, 27))
"""Normal numbers have about 2**(k / 2) codes with these; entropy coders have a kernel per power of two."""

_NUMELS: Final = tuple(
    whole - less for whole, less in product((2048, 3 * 2048, 16 * 2048), (0, 1, 128, 129, 512, 513))
)
"""Triton specializes on integers that are 1 or multiples of 16, and on addresses that are multiples of 16 bytes.
These sizes cover each case for the numbers of values, of groups of 128 and of tiles of 2048. Tensors of up to
8192 values count as small (``kernels/batch/gpu/packed_short.py``)."""
_LARGE: Final = 1 << 18
"""Values from which a tensor is large and may have either alphabet (``kernels/batch/gpu/ans_plan.py``)."""

_WIDTH: Final = 16
_ROW_WIDTHS: Final = (16, 32, 64, 128)
"""Row widths to compile ``rows`` for: its kernels are specialized on the width, rounded up to a power of two."""

_NUM_ROWS: Final = 2048
_ROW_COUNTS: Final = tuple(1 << k for k in range(6, 13))
"""Row counts of short tables: their numbering kernels are specialized on the next power of two."""
_LONG_ROWS: Final = 8192
"""Row count of a table that is not short (``kernels/rows/dedup/gpu/slots.py``)."""
_NUM_DISTINCT: Final = 64


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """Compile times of the kernels of one codec for one dtype.

    Attributes:
        codec: id of the codec.
        dtype: of the tensors.
        compile_s: seconds of compilation; 0 if all kernels were already compiled or cached on disk.
        again_s: seconds of compilation in a second run over the same tensors, which must be 0.
    """

    codec: str
    dtype: torch.dtype
    compile_s: float
    again_s: float


def warmup(
    codecs: Sequence[str | Codec] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[int, int, str], None] | None = None,
) -> list[WarmedUp]:
    """Compile the kernels of codecs ahead of their first use, or load them from the cache on disk.

    Small tensors are encoded and decoded on ``device``: one at a time and in lists, under absolute and
    relative bounds, with and without outliers, at addresses aligned to 16 bytes and others, and for ``rows``
    in rows of 16, 32, 64 and 128 values. Compiled kernels are cached on disk for later processes.

    On CUDA some compilation remains for first use: ``rows`` for other widths and for tables of fewer than 33
    rows, and, for some sizes, the second pass of ``ans`` and ``rows`` over data that their fused kernels
    cannot code.

    Args:
        codecs: ids, created by ``create(id, device=device)``, or codec objects; by default ``auto``, its
            candidates on this device, and the codecs of fixed size.
        dtypes: by default float32, on CUDA also bfloat16.
        device: where the kernels run.
        progress: called with (pairs done, total pairs, next codec and dtype).

    Returns:
        One entry per codec and dtype.

    Raises:
        UnknownCodecError: there is no such codec.
        SpecError: a codec does not support a dtype, or there is no such device.
        BackendUnavailableError: torch finds no CUDA device, or a codec needs a package that is missing.

    Example:
        >>> [one.again_s for one in warmup(["raw"], [torch.float32])]
        [0.0]
    """
    if isinstance(codecs, str):
        raise SpecError(f"give a list of codecs, as in [{codecs!r}]")
    if isinstance(dtypes, str | torch.dtype):
        raise SpecError(f"give a list of dtypes, as in [{dtypes}]")
    where = _checked_device(device)
    names = default_codecs(where) if codecs is None else codecs
    wanted = default_dtypes(where) if dtypes is None else dtypes
    if not names or not wanted:
        raise SpecError("name at least one codec and one dtype")
    for dtype in wanted:
        check_dtype(dtype)
    pairs = [(_specs(name, where), dtype) for name, dtype in product(names, wanted)]
    for (first, *_), dtype in pairs:
        first.check_supported(dtype)
    found = []
    for done, (specs, dtype) in enumerate(pairs):
        codec_id = specs[0].codec_id
        if progress is not None:
            progress(done, len(pairs), f"{codec_id}, {str(dtype).removeprefix('torch.')}")
        first_s, again_s = (_compile_seconds(specs, dtype, where) for _ in range(2))
        found.append(WarmedUp(codec_id, dtype, first_s, again_s))
    # drop graphs of shapes that only the warm-up uses
    REPLAYS.reset()
    return found


def default_codecs(device: torch.device) -> tuple[str, ...]:
    """Return the ids of the codecs that are fast on ``device``."""
    chosen_from = tuple(
        codec_id for codec_id in Auto(bound=_BOUNDS[0]).tried_on(device) if codec_id != "raw"
    )
    return (*chosen_from, "auto", *_FIXED_SIZE)


def default_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """Return the dtypes commonly used on ``device``."""
    return (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,)


def compile_lists(
    codecs: Iterable[Codec], dtype: torch.dtype, device: torch.device, width: int = _WIDTH
) -> None:
    """Encode and decode lists of synthetic rows of ``width`` values with each codec, as an exchange would.

    Without this, the first training steps take seconds on all ranks: on those that compile, and on those that
    wait for them.
    """
    for codec in dict.fromkeys(codecs):
        for tensors in _lists(dtype, device, width):
            used, infos = [codec] * len(tensors), [TensorInfo.of(x) for x in tensors]
            batch = encode_batch(tensors, used)
            decode_batch(batch, infos, used)
            decode_batch(batch.trimmed(), infos, used)


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SpecError(f"device must be 'cpu' or 'cuda', not {device!r}") from error
    if where.type not in ("cpu", "cuda"):
        raise SpecError(f"device must be 'cpu' or 'cuda', not {str(where)!r}")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError("torch finds no CUDA device here; warm up device 'cpu'")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise SpecError(
            f"there is no {where}; torch finds {torch.cuda.device_count()} CUDA devices"
        )
    return where


def _specs(codec: str | Codec, device: torch.device) -> list[Codec]:
    """Return a codec object unchanged; for an id, one codec per bound of ``_BOUNDS`` if it takes one."""
    if not isinstance(codec, str):
        check_is_codec(codec)
        return [codec]
    if not get(codec).takes_bound():
        return [create(codec, device=device)]
    return [create(codec, device=device, bound=bound) for bound in _BOUNDS]


def _compile_seconds(specs: Sequence[Codec], dtype: torch.dtype, device: torch.device) -> float:
    """Run the kernels of the codecs; return the seconds spent compiling."""
    before_s = compile_seconds()
    # often enough to trigger replay as a CUDA graph, which uses an extra kernel
    for codec, _ in product(_written_by(specs[0], dtype, device), range(4)):
        codec.unpack(codec.pack(_noise(max(_NUMELS)).to(device=device, dtype=dtype)))
    for spec in specs:
        candidates = _written_by(spec, dtype, device)
        for codec, x in product(dict.fromkeys((spec, *candidates)), _tensors(dtype, device)):
            codec.unpack(codec.pack(x))
        compile_lists(candidates, dtype, device)
        by_row = [codec for codec in candidates if isinstance(codec, Rows)]
        for width in _ROW_WIDTHS:
            compile_lists(by_row, dtype, device, width)
    table = _noise(_NUM_ROWS, _WIDTH).to(device=device, dtype=dtype)
    for codec, bound in product(_written_by(specs[0], dtype, device), _ALPHABET_BOUNDS):
        if codec.takes_bound():
            finer = replace(codec, bound=bound)  # type: ignore[call-arg]
            for x in (table, table.view(-1)[:-1]):
                finer.unpack(finer.pack(x))
    return compile_seconds() - before_s


def _written_by(codec: Codec, dtype: torch.dtype, device: torch.device) -> list[Codec]:
    """Return the candidates of ``auto`` for tensors of three axes; any other codec by itself."""
    if not isinstance(codec, Auto):
        return [codec]
    return codec.candidates(torch.zeros(2, 2, 2, dtype=dtype, device=device))


def _tensors(dtype: torch.dtype, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield single tensors of all sizes, ranks and alignments that kernels distinguish, and with outliers."""
    flat = _noise(max(_NUMELS)).to(device=device, dtype=dtype)
    for numel in (*_NUMELS, 128, 127, 1):
        yield flat[:numel]
    for numel in (2048, max(_NUMELS)):
        yield flat[1:numel]
        yield flat[:numel].view(-1, _WIDTH)
        yield flat[:numel].view(16, -1, _WIDTH)
        yield _with_outliers(flat[:numel])


def _lists(dtype: torch.dtype, device: torch.device, width: int) -> Iterator[list[torch.Tensor]]:
    """Yield lists of tables with repeated or distinct rows, of all forms that kernels distinguish."""
    table = _noise(_NUM_DISTINCT, width)
    places = torch.arange(_NUM_ROWS, device="cpu").mul(7919).remainder(_NUM_DISTINCT)
    repeated = table[places].to(device=device, dtype=dtype)
    distinct = _noise(_NUM_ROWS, width).to(device=device, dtype=dtype)
    few = distinct[: _NUM_ROWS // 16]
    shifted = few.view(-1)[1 : 1 - width].view(-1, width)
    for large in (repeated, few):
        # one row, one table and a list of several tables use different kernels
        yield [large]
        yield [large, few, few[:1]]
        yield [large, few, few[:1], repeated[:64]]
        yield [large, shifted]
        yield [_with_outliers(large), few]
        # the second payload is not aligned to 16 bytes
        yield [few.view(-1)[:100], large]
    if device.type == "cuda":
        most = _noise(max(_LARGE // width, _LONG_ROWS), width).to(device=device, dtype=dtype)
        yield [most]
        yield [most, few]
        for num_rows in _ROW_COUNTS:
            yield [most[:num_rows]]
            yield [most[:num_rows], few[:64]]


def _noise(*shape: int) -> torch.Tensor:
    """Return the same normal numbers on every call, on the CPU; global random state is unchanged."""
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randn(shape, generator=generator, device="cpu")


def _with_outliers(x: torch.Tensor) -> torch.Tensor:
    changed = x.clone()
    changed.view(-1)[::1000] = torch.inf
    return changed
