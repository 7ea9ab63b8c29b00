"""``tersor compress``: compresses arrays into a ``.tsr`` file with one chunk in memory at a time."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, Final

import typer

from tersor.chunks import MAX_CHUNK_VALUES, ChunkPlan
from tersor.cli.arrays import Inputs, Source, open_inputs, parse_dtype, parse_shape
from tersor.cli.arrays.source import Advance, watched
from tersor.cli.options import (
    AbsOption,
    DtypeOption,
    ForceOption,
    JsonOption,
    MaxMemoryOption,
    RelOption,
    ShapeOption,
    ThreadsOption,
    option,
    parse_bound,
    parse_size,
    use_threads,
)
from tersor.cli.screen import Screen, binary_size, printable
from tersor.cli.streams import STANDARD, Output, check_output, open_output
from tersor.cli.wording import bound_words, codec_words
from tersor.codecs import Codec, get, registry
from tersor.codecs.auto import Auto
from tersor.container import FILE_CHUNK_VALUES, Writer
from tersor.errors import SpecError
from tersor.kernels.quantize import finite_range
from tersor.memory import check_fits
from tersor.types import FLOAT_DTYPES, Bound

_MAX_NAMED: Final = 3
"""Most left-out entries named in messages; --json lists all."""


_InputArgument = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="A .npy, .npz, .pt or .safetensors file, raw binary with --dtype and --shape, "
        "or - for standard input (.npy bytes or raw binary).",
    ),
]
_OutputOption = Annotated[
    str | None,
    option(
        "--output -o",
        "Where to write; - for standard output. Default: the input's name with .tsr appended.",
        "FILE",
    ),
]
_CodecOption = Annotated[
    str,
    option("--codec", "A codec id, see 'tersor codecs'; auto tries several.", "ID"),
]
_CodecOptionOption = Annotated[
    list[str] | None,
    option("--option", "An option of the codec; may be repeated.", "KEY=VALUE"),
]
_ChunkValuesOption = Annotated[
    int,
    option(
        "--chunk-values",
        "Most values per chunk. One chunk is held in memory at a time, and can be read alone.",
        "N",
    ),
]


def compress(
    source: _InputArgument,
    output: _OutputOption = None,
    absolute: AbsOption = None,
    relative: RelOption = None,
    codec: _CodecOption = "auto",
    option: _CodecOptionOption = None,
    chunk_values: _ChunkValuesOption = FILE_CHUNK_VALUES,
    dtype: DtypeOption = None,
    shape: ShapeOption = None,
    threads: ThreadsOption = None,
    max_memory: MaxMemoryOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compress an array file within a promised error.

    Arrays that are not floats are stored exactly where the input can hold several arrays, and
    always with --codec auto.
    """
    screen = Screen(as_json=as_json)
    use_threads(threads)
    bound = parse_bound(absolute, relative)
    options = parse_options(option or [], codec)
    check_bound(codec, bound)
    options |= {} if bound is None else {"bound": bound}
    if not 1 <= chunk_values <= MAX_CHUNK_VALUES:
        raise SpecError(f"--chunk-values must be from 1 to {MAX_CHUNK_VALUES}, not {chunk_values}")
    target = output or (STANDARD if source == STANDARD else f"{source}.tsr")
    check_output(target, force=force, as_json=as_json)
    with ExitStack() as stack:
        described = parse_dtype(dtype), parse_shape(shape)
        limit = parse_size(max_memory)
        inputs = open_inputs(source, stack, *described, limit)
        _check_chunks_fit(inputs, chunk_values, limit)

        def codec_for(found: Source) -> Codec:
            exact = found.info.dtype not in FLOAT_DTYPES and (inputs.several or codec == "auto")
            # a note on a wide bound follows, in words of the command line
            return registry.made("raw" if exact else codec, **({} if exact else options))

        output_nbytes, arrays = _write(screen, inputs, target, codec_for, chunk_values)
    values = {
        "input": source,
        "output": target,
        "original_nbytes": inputs.nbytes,
        "encoded_nbytes": output_nbytes,
        "ratio": inputs.nbytes / output_nbytes,
        "arrays": arrays,
        "left_out": inputs.left_out,
    }
    screen.result(values)
    _say_notes(screen, inputs.left_out, bound)
    if not as_json:
        _say_summary(screen, values)
    return 0


def _check_chunks_fit(inputs: Inputs, chunk_values: int, max_nbytes: int | None) -> None:
    """Raise ``MemoryLimitError`` if the values and encoded bytes of a chunk exceed the limit."""
    for found in inputs.sources:
        if found.is_read_whole:
            continue
        chunk_nbytes = min(found.info.numel, chunk_values) * found.info.dtype.itemsize
        way_out = "write smaller chunks with --chunk-values, or "
        check_fits(2 * chunk_nbytes, max_nbytes, f"a chunk of {found.name}", way_out)


def parse_options(pairs: list[str], codec_id: str) -> dict[str, Any]:
    """Parse ``key=value`` options of a codec; values are JSON if they parse as such, else strings.

    Raises:
        SpecError: an option is not a pair, or the codec has no such option.
        UnknownCodecError: there is no such codec.
    """
    known = get(codec_id).option_names()
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise SpecError(f"--option takes key=value, not {pair!r}")
        if key not in known:
            has = f"it has {', '.join(known) or 'none'}"
            way_out = "; name the codec it belongs to with --codec ID" * (codec_id == "auto")
            raise SpecError(f"codec {codec_id!r} has no option {key!r}; {has}{way_out}")
        try:
            options[key] = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            options[key] = text
    return options


def check_bound(codec_id: str, bound: Bound | None) -> None:
    """Raise ``SpecError`` if a bound is missing, or given to a codec that takes none."""
    if registry.get(codec_id).takes_bound() and bound is None:
        raise SpecError(
            f"codec {codec_id!r} needs a bound: give --abs E or --rel R, "
            "or store values exactly with --codec raw"
        )
    if bound is not None and not registry.get(codec_id).takes_bound():
        raise SpecError(f"codec {codec_id!r} takes no error bound: leave out --abs and --rel")


def _write(
    screen: Screen,
    inputs: Inputs,
    target: str,
    codec_for: Callable[[Source], Codec],
    chunk_values: int,
) -> tuple[int, list[dict[str, Any]]]:
    """Write all arrays; return the size of the file in bytes, and a description of each array."""
    pairs = [(source, codec_for(source)) for source in inputs.sources]
    # reject unsupported arrays before writing the first one
    for source, codec in pairs:
        codec.check_supported(source.info.dtype)
    total_nbytes = sum(source.info.nbytes * _num_passes(codec) for source, codec in pairs)
    arrays = []
    with (
        screen.compiling(),
        open_output(target) as output,
        screen.progress("compressing", total_nbytes) as advance,
    ):
        with Writer(output.stream) as writer:
            for source, codec in pairs:
                metadata = inputs.metadata if source is inputs.sources[0] else {}
                plan = ChunkPlan(source.info.shape, chunk_values)
                arrays.append(_write_array(writer, output, source, codec, plan, metadata, advance))
        return output.nbytes, arrays


def _num_passes(codec: Codec) -> int:
    bound = getattr(codec, "bound", None)
    return 2 if isinstance(bound, Bound) and bound.kind == "relative" else 1


def _write_array(
    writer: Writer,
    output: Output,
    source: Source,
    codec: Codec,
    plan: ChunkPlan,
    metadata: Mapping[str, str],
    advance: Advance,
) -> dict[str, Any]:
    """Write one array; return its description for ``--json``."""
    error_bound = _error_bound(codec, source, plan, advance)
    reason = ""
    if isinstance(codec, Auto) and error_bound is not None:
        middle = plan[len(plan) // 2]
        codec, reason = codec.choose(source.chunk(middle).view(middle.shape), error_bound)
        error_bound = error_bound if codec.takes_bound() else None
    before_nbytes = output.nbytes
    writer.add_chunks(
        source.name,
        source.info,
        codec,
        error_bound,
        watched(source.chunks(plan), advance),
        plan.max_values,
        metadata=metadata,
        reason=reason,
    )
    nbytes, encoded_nbytes = source.info.nbytes, output.nbytes - before_nbytes
    return {
        "name": source.name,
        **source.info.to_config(),
        "codec": codec.to_config(),
        "error_bound": error_bound,
        "original_nbytes": nbytes,
        "encoded_nbytes": encoded_nbytes,
        "ratio": nbytes / max(1, encoded_nbytes),
        "num_chunks": len(plan),
        "reason": reason,
    }


def _error_bound(codec: Codec, source: Source, plan: ChunkPlan, advance: Advance) -> float | None:
    """Return the absolute error bound; a relative bound takes one pass over the values."""
    bound = getattr(codec, "bound", None)
    if not isinstance(bound, Bound):
        return None
    if bound.kind == "absolute":
        return bound.value
    low, high = math.inf, -math.inf
    for x in watched(source.chunks(plan), advance):
        chunk_low, chunk_high = finite_range(x).tolist()
        low, high = min(low, chunk_low), max(high, chunk_high)
    return bound.resolve(low, high) if low <= high else 0.0


def _say_notes(screen: Screen, left_out: list[str], bound: Bound | None) -> None:
    """Print notes on results that a user may not expect."""
    if left_out:
        shown = ", ".join(left_out[:_MAX_NAMED]) + ", ..." * (len(left_out) > _MAX_NAMED)
        what = (
            "entry that is no tensor was"
            if len(left_out) == 1
            else "entries that are no tensors were"
        )
        screen.say(
            f"{len(left_out)} {what} left out, so this file cannot replace the original: "
            f"{printable(shown)}"
        )
    if bound is not None and bound.kind == "relative" and bound.value >= 1:
        screen.say(
            f"a relative bound of {bound.value:g} allows errors as large as the whole range: little "
            "but the range is kept; choose a smaller --rel, as 1e-3"
        )


def _say_summary(screen: Screen, values: Mapping[str, Any]) -> None:
    arrays = values["arrays"]
    if len(arrays) == 1:
        config = arrays[0]["codec"]
        guarantee = registry.from_config(config).guarantee
        error_bound = arrays[0]["error_bound"]
        bound = bound_words(config, guarantee, error_bound)
        promised = "promise" if error_bound is None else "promised error"
        promise = f"codec {codec_words(config)}, {promised}: {bound}"
    else:
        counts = Counter(array["codec"]["id"] for array in arrays)
        used = ", ".join(f"{codec_id} x {count}" for codec_id, count in counts.most_common())
        promise = (
            f"{len(arrays)} arrays, codecs {used or 'none'}; 'tersor inspect' shows the bounds"
        )
    output = "standard output" if values["output"] == STANDARD else values["output"]
    screen.say(
        f"{printable(output)}: ratio {values['ratio']:.2f}, "
        f"{binary_size(values['original_nbytes'])} -> {binary_size(values['encoded_nbytes'])}, "
        f"{promise}"
    )
