"""Compression options of weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tersor.codecs.group import check_seed
from tersor.errors import SpecError
from tersor.kernels.transform.reference import ORDER

Bits = Literal[4, 8, 16, 32]
"""Bits per value: codes with a scale per group (4, 8), bfloat16 (16), or uncompressed (32)."""

CODED_BITS: Final = (4, 8)
"""Bits per value of the formats with a scale per group."""

_GRADIENT_BITS: Final = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Compression of gathered weights.

    All ranks share a reference copy of the weights. Each rank sends the difference between its weights and the
    reference, in ``nbits`` per value with one scale per ``group`` values. The next difference includes the rounding
    error of the last one, so errors do not accumulate.

    Attributes:
        nbits: 4 or 8.
        group: values per scale.
        reference: with ``"whole"``, every rank holds the reference of all weights, and backward sends nothing. With
            ``"node"``, the ranks of a node hold it in parts: differences cross nodes once per step, and each gather
            collects the weights uncompressed within the node.
        rounding: ``"nearest"`` or ``"stochastic"``.
        differences: False sends the weights themselves in ``nbits``, a baseline that harms training.
        seed: seed of stochastic rounding.
    """

    nbits: int = 4
    group: int = 2048
    reference: Literal["whole", "node"] = "whole"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    differences: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Reject invalid options."""
        if self.nbits not in CODED_BITS:
            raise SpecError(f"nbits of weights must be 4 or 8, not {self.nbits!r}")
        check_group(self.group)
        _check_choice("reference", self.reference, ("whole", "node"))
        _check_choice("rounding", self.rounding, ("nearest", "stochastic"))
        _check_seed(self.seed)
        if not self.differences and self.reference == "node":
            raise SpecError(
                "weights without differences have no reference; leave reference='whole'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Compression of gradients on the way to the rank that owns them.

    Gradients are summed within each node first, then across nodes. Each hop has its own number of bits per value, and
    sums are computed in float32. If all ranks share one node, or every node has one rank, there is only that one hop.

    Attributes:
        node_nbits: bits per value of the hop within a node: 4, 8, 16 (bfloat16) or 32 (uncompressed).
        nbits: bits per value of the hop across nodes; same choices.
        group: values per scale.
        hadamard: apply a Hadamard transform to every 32 values before the first hop, and invert it after the last.
            It spreads outliers over their neighbours.
        levels: 2, or 1 for a single hop between all ranks in ``nbits``.
        error_feedback: weight of each step, from 0 to 1, in a moving average of the rounding errors, which every rank
            adds to its next gradient (LoCo: 0.8). It takes one byte per value of the unsharded gradient. 0 disables
            it.
        reset_every: number of steps after which the moving average is reset.
        seed: seed of stochastic rounding.
    """

    node_nbits: Bits = 8
    nbits: Bits = 4
    group: int = 128
    hadamard: bool = True
    levels: Literal[1, 2] = 2
    error_feedback: float = 0.0
    reset_every: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        """Reject invalid options."""
        for name in ("node_nbits", "nbits"):
            if getattr(self, name) not in _GRADIENT_BITS:
                raise SpecError(f"{name} must be 4, 8, 16 or 32, not {getattr(self, name)!r}")
        check_group(self.group)
        if self.hadamard and self.group % ORDER:
            raise SpecError(f"with hadamard, group must be a multiple of 32, not {self.group}")
        if self.levels not in (1, 2):
            raise SpecError(f"levels must be 1 or 2, not {self.levels!r}")
        if not 0 <= self.error_feedback <= 1:
            raise SpecError(f"error_feedback must be from 0 to 1, not {self.error_feedback!r}")
        if type(self.reset_every) is not int or self.reset_every < 1:
            raise SpecError(f"reset_every must be a positive number, not {self.reset_every!r}")
        _check_seed(self.seed)


def check_group(group: object, name: str = "group") -> None:
    """Raise ``SpecError`` unless ``group`` is a valid number of values per scale."""
    if type(group) is not int or not 2 <= group <= 2**20 or group % 2:
        raise SpecError(f"{name} must be an even number from 2 to 1048576, not {group!r}")


def _check_seed(seed: object) -> None:
    if seed is None:
        raise SpecError("seed must be a whole number")
    check_seed(seed)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SpecError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def derive_seed(seed: int, *numbers: int) -> int:
    """Return a 64-bit seed, derived from ``seed`` and numbers of any size that identify one rounding.

    Ranks must not share seeds: their rounding errors would add up instead of averaging out.

    Example:
        >>> derive_seed(0, 1, 2) != derive_seed(0, 2, 1)
        True
    """
    mixed = seed
    for number in numbers:
        # one step of splitmix64 per number
        mixed = (mixed * 0xD1342543DE82EF95 + number + 0x9E3779B97F4A7C15) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        mixed ^= mixed >> 31
    return mixed
