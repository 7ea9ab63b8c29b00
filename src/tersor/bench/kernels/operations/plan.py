"""The measured fused operations, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from tersor.bench.kernels.operations import SUITE

INPUT: Final = "gradients"
"""The input on which they are measured."""
NUM_SENDERS: Final = 8
NUM_NODES: Final = 2
SEED: Final = 7

Kind = Literal["difference", "add", "quantize", "requantize", "sum"]
_WEIGHTS_GROUP: Final = 2048
_GRADIENTS_GROUP: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation, in the form in which the ranks of FSDP use it.

    Attributes:
        kind: ``difference`` quantizes one row minus its base; ``add`` decodes the rows of 8 peers and
            adds them to existing values; ``quantize`` writes rows of 2 nodes of 4 ranks into a buffer per
            rank; ``requantize`` quantizes the sum over 8 senders; ``sum`` decodes that sum to float32.
        nbits: bits of the codes that it writes, or that it reads if it writes values.
        group: values per scale.
        dtype: dtype of values and bases.
        stochastic: whether it rounds stochastically.
        hadamard: whether it applies a Hadamard transform.
        sent_nbits: bits of the codes that a requantization reads.
    """

    kind: Kind
    nbits: int
    group: int
    dtype: Literal["float32", "bfloat16"] = "float32"
    stochastic: bool = False
    hadamard: bool = False
    sent_nbits: int | None = None

    @property
    def seed(self) -> int | None:
        """The seed of stochastic rounding; None without it."""
        return SEED if self.stochastic else None

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def _operations() -> Iterator[tuple[str, Operation]]:
    roundings = (("", False), ("-stochastic", True))
    for end, dtype in (("", "float32"), ("-bf16", "bfloat16")):
        weights: dict[str, Any] = {"nbits": 4, "group": _WEIGHTS_GROUP, "dtype": dtype}
        for rounding, is_stochastic in roundings:
            difference = Operation(kind="difference", stochastic=is_stochastic, **weights)
            yield f"difference4{end}{rounding}", difference
        yield f"add4{end}", Operation(kind="add", **weights)
    for nbits in (8, 4):
        for name, hadamard in (("quantize", False), ("hadamard", True)):
            for rounding, is_stochastic in roundings:
                gradients: dict[str, Any] = {
                    "nbits": nbits,
                    "group": _GRADIENTS_GROUP,
                    "hadamard": hadamard,
                }
                one = Operation(kind="quantize", stochastic=is_stochastic, **gradients)
                yield f"{name}{nbits}{rounding}", one
    for rounding, is_stochastic in roundings:
        yield f"sum8x8to4{rounding}", Operation(
            kind="requantize", nbits=4, sent_nbits=8, group=_GRADIENTS_GROUP,
            stochastic=is_stochastic,
        )  # fmt: skip
    for end, hadamard in (("", False), ("-hadamard", True)):
        yield (
            f"sum8x4{end}",
            Operation(kind="sum", nbits=4, group=_GRADIENTS_GROUP, hadamard=hadamard),
        )


OPERATIONS: Final[Mapping[str, Operation]] = dict(_operations())


def split_names(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split names into those of codecs and of operations; ``groups`` stands for all operations.

    Example:
        >>> split_names(["flat", "add4"])
        (('flat',), ('add4',))
    """
    codecs: list[str] = []
    operations: dict[str, None] = {}
    for name in names:
        if name == SUITE:
            operations |= dict.fromkeys(OPERATIONS)
        elif name in OPERATIONS:
            operations[name] = None
        else:
            codecs.append(name)
    return tuple(codecs), tuple(operations)
