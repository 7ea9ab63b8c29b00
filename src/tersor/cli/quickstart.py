"""``tersor quickstart``: what training moves, compressed and checked, in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Final

import torch
import typer
from rich.table import Table
from rich.text import Text

from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import JsonOption, ThreadsOption, use_threads
from tersor.cli.screen import Screen, json_number
from tersor.codecs import Codec, Packed, create
from tersor.errors import SpecError
from tersor.types import Bound

_INPUT_NBYTES: Final = 4 * 2**20
_ROUNDS: Final = 3
_CODECS: Final = ("flat", "delta", "huffman", "ans", "zstd", "rows")
_WHAT: Final = {
    "embeddings": "rows that batches look up in the tables of a recommendation model",
    "gradients": "a matrix of small normal values",
    "activations": "the output of a ReLU, half of it zero",
    "field": "a smooth 3-D field, as a simulation writes it",
}


def quickstart(
    relative: Annotated[
        float,
        typer.Option("--rel", metavar="R", help="Relative bound that every value must keep."),
    ] = 0.01,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compress generated tensors with several codecs, check every value, and print a table.

    Takes well under a minute once the kernels are compiled for this machine.
    """
    if not relative > 0:
        raise SpecError(f"--rel must be above 0 here, not {relative}")
    screen = Screen(as_json=as_json)
    use_threads(threads)
    lines: list[_Line] = []
    choices: list[_Choice] = []
    with ExitStack() as stack:
        stack.enter_context(screen.compiling())
        show = stack.enter_context(screen.steps("quickstart"))
        for index, name in enumerate(_WHAT):
            show(index, len(_WHAT), name)
            made, chosen = _run_input(name, relative)
            lines += made
            choices.append(chosen)
    broken = [line for line in lines if not line.quotient <= 1]
    values = {
        "relative_bound": relative,
        "threads": torch.get_num_threads(),
        "rows": [line.values() for line in lines],
        "auto": [choice.values() for choice in choices],
        "holds": not broken,
    }
    shown = [Text(choice.sentence()) for choice in choices]
    screen.result(values, _table(lines, relative), *shown, Text(_closing(len(broken))))
    for line in broken:
        screen.say(f"{line.codec} on {line.input} broke its bound; please report this")
    return CHECK_FAILED if broken else 0


@dataclass(frozen=True, slots=True)
class _Line:
    """One codec on one input; speeds in 1e6 bytes of float32 per second."""

    input: str
    codec: str
    ratio: float
    quotient: float
    encode_mbps: float
    decode_mbps: float

    def values(self) -> dict[str, Any]:
        return {
            "input": self.input,
            "codec": self.codec,
            "ratio": self.ratio,
            "worst_error_over_bound": json_number(self.quotient),
            "encode_mbps": self.encode_mbps,
            "decode_mbps": self.decode_mbps,
        }


@dataclass(frozen=True, slots=True)
class _Choice:
    """What ``auto`` picked for the tensors of one input, most frequent first."""

    input: str
    counts: dict[str, int]
    reason: str

    def values(self) -> dict[str, Any]:
        return {"input": self.input, "codecs": self.counts, "reason": self.reason}

    def sentence(self) -> str:
        total = sum(self.counts.values())
        picked = ", ".join(f"{codec} for {n} of {total}" for codec, n in self.counts.items())
        several = f"{picked}; " if len(self.counts) > 1 else ""
        return f"auto on {self.input} ({_WHAT[self.input]}): {several}{self.reason}"


class _Trial:
    """One codec on the tensors of one input: encoded and checked, then ready to be timed."""

    def __init__(self, codec: Codec, xs: Sequence[torch.Tensor]) -> None:
        from tersor.bench.roundtrip import quotient, worst_error

        self.codec = codec
        self.xs = xs
        self.packed = self.encode()
        # memory that nothing was decoded into must not pass the check
        self.outs = [torch.full_like(x, torch.nan) for x in xs]
        self.quotient = max(
            quotient(worst_error(x, y), one.error_bound or 0.0)
            for x, y, one in zip(xs, self.decode(), self.packed, strict=True)
        )

    def encode(self) -> list[Packed]:
        return [self.codec.encode(x) for x in self.xs]

    def decode(self) -> list[torch.Tensor]:
        pairs = zip(self.packed, self.outs, strict=True)
        return [one.codec.decode(one, out) for one, out in pairs]

    def line(self, name: str, encode_s: float, decode_s: float) -> _Line:
        nbytes = sum(x.nbytes for x in self.xs)
        return _Line(
            input=name,
            codec=self.codec.codec_id,
            ratio=nbytes / sum(one.nbytes for one in self.packed),
            quotient=self.quotient,
            encode_mbps=nbytes / encode_s / 1e6,
            decode_mbps=nbytes / decode_s / 1e6,
        )


def _run_input(name: str, relative: float) -> tuple[list[_Line], _Choice]:
    """Encode, check and time one input with every codec; ``auto`` comes last."""
    from tersor.bench.inputs import make_input
    from tersor.bench.timing import measure_interleaved

    xs = make_input(name, _INPUT_NBYTES).slices
    bound = Bound.relative(relative)
    trials = [_Trial(create(codec_id, bound=bound), xs) for codec_id in (*_CODECS, "auto")]
    tasks: dict[str, Callable[[], object]] = {
        f"{t.codec.codec_id} encode": t.encode for t in trials
    }
    tasks |= {f"{t.codec.codec_id} decode": t.decode for t in trials}
    times = measure_interleaved(tasks, device=torch.device("cpu"), rounds=_ROUNDS)
    lines = [
        trial.line(
            name,
            times[f"{trial.codec.codec_id} encode"].p50,
            times[f"{trial.codec.codec_id} decode"].p50,
        )
        for trial in trials
    ]
    counts = Counter(one.codec.codec_id for one in trials[-1].packed)
    most_common = counts.most_common(1)[0][0]
    reasons = (one.reason for one in trials[-1].packed if one.codec.codec_id == most_common)
    return lines, _Choice(name, dict(counts.most_common()), next(reasons))


def _table(lines: list[_Line], relative: float) -> Table:
    table = Table(title=f"Every value within {relative:g} of the range, checked in float64")
    for name in ("input", "codec"):
        table.add_column(name)
    for name in ("ratio", "worst error / bound", "encode MB/s", "decode MB/s"):
        table.add_column(name, justify="right")
    previous = lines[0].input
    for line in lines:
        if line.input != previous:
            table.add_section()
            previous = line.input
        table.add_row(
            line.input,
            line.codec,
            f"{line.ratio:.2f}",
            f"{line.quotient:.4f}" if line.quotient <= 1 else f"[red]{line.quotient:.4f}[/red]",
            f"{line.encode_mbps:.0f}",
            f"{line.decode_mbps:.0f}",
        )
    return table


def _closing(num_broken: int) -> str:
    if num_broken:
        return f"{num_broken} results broke their bound."
    return (
        "Every bound held. Next: tersor compress FILE.npy --rel 1e-3, then tersor verify FILE.npy "
        "FILE.npy.tsr; 'tersor codecs' lists all codecs, docs/cli.md has the rest."
    )
