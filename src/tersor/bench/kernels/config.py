"""The plan of the ``kernels`` suite: device, inputs, sizes, bounds, codecs and peers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tersor.bench.core.inputs import (
    DEFAULT_INPUTS,
    FULL_NBYTES,
    SMOKE_NBYTES,
    BenchInput,
    bounds_of,
    make_input,
)
from tersor.bench.kernels.device_inputs import (
    DEVICE_INPUTS,
    DEVICE_SIZES,
    device_bounds_of,
    make_device_input,
    sizes_of,
)
from tersor.bench.kernels.operations.plan import INPUT, OPERATIONS, split_names
from tersor.bench.peers import DEVICE_PEERS, PEERS
from tersor.errors import SpecError

DEFAULT_CODECS: Final = (
    "flat", "delta", "huffman", "ans", "lz4", "zstd", "rows", "group8", "group4",
)  # fmt: skip
DEVICE_CODECS: Final = (
    "flat", "flat-absolute", "flat-device", "flat-device-absolute", "flat-graph",
    "flat-graph-absolute", "delta", "huffman", "ans", "ans-device", "ans-device-absolute",
    "ans-graph", "ans-graph-absolute", "rows", "rows-ans", "rows-device", "rows-graph", "group8",
    "group4", "group4-hadamard", "half-device", "half-graph", "group8-device", "group8-graph",
    "group4-device", "group4-graph",
)  # fmt: skip
_OWN_CODECS: Final = {
    "tensor": ("auto-compress", "flat-compress", "ans-compress", "delta-compress"),
    "tensor-bf16": ("flat-compress", "ans-compress", "delta-compress"),
    "tensor-f16": ("flat-compress", "ans-compress", "delta-compress"),
    "tensor-field": ("delta-compress", "delta3-compress"),
    "lookups-2048": ("flat-batch", "ans-batch", "rows-batch"),
    "lookups-256": ("flat-batch", "ans-batch", "rows-batch"),
}
"""The codecs of inputs that represent a user's calls; all other inputs use ``DEVICE_CODECS``."""
_MIN_DEVICE_ROUNDS: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelsConfig:
    """What to measure.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``; ``for_device`` has the defaults of each.
        inputs: names from ``tersor.bench.core.inputs.INPUTS``, or on CUDA from ``DEVICE_INPUTS``.
        bounds: relative bounds; empty for each input's own.
        codecs: ids of registered codecs, or names from ``tersor.bench.kernels.variants.VARIANTS``; None
            for each CUDA input's default codecs.
        operations: names from ``tersor.bench.kernels.operations.plan.OPERATIONS``.
        peers: names from ``tersor.bench.peers.peers_of(device)``.
        threads: thread counts for our codecs; peers use one.
        sizes: sizes of the inputs in bytes, powers of two; some CUDA inputs have a fixed size.
        rounds: timed rounds per group.
        warmup: untimed rounds before those.
    """

    device: str = "cpu"
    inputs: tuple[str, ...] = DEFAULT_INPUTS
    bounds: tuple[float, ...] = ()
    codecs: tuple[str, ...] | None = DEFAULT_CODECS
    operations: tuple[str, ...] = ()
    peers: tuple[str, ...] = tuple(PEERS)
    threads: tuple[int, ...] = (1, 2)
    sizes: tuple[int, ...] = (FULL_NBYTES,)
    rounds: int = 7
    warmup: int = 1

    def __post_init__(self) -> None:
        """Reject an empty or impossible plan."""
        if self.device not in ("cpu", "cuda"):
            raise SpecError(f"device must be 'cpu' or 'cuda', not {self.device!r}")
        has_any = self.codecs is None or self.codecs or self.peers or self.operations
        if not self.inputs or not self.sizes or not has_any:
            raise SpecError("name at least one input and one codec or peer to measure")
        if not self.threads or any(count < 1 for count in self.threads):
            raise SpecError(f"thread counts must be at least 1, not {list(self.threads)}")
        if any(not bound > 0 for bound in self.bounds):
            raise SpecError(f"relative bounds must be above 0, not {list(self.bounds)}")

    @classmethod
    def for_device(cls, device: str, **asked: Any) -> KernelsConfig:
        """Return the full plan for a device, with ``asked`` overriding its defaults.

        ``codecs`` in ``asked`` may also name operations, or ``groups`` for all operations.

        Raises:
            SpecError: the plan is impossible, or lacks the input of a requested operation.
        """
        asked = _with_operations(asked)
        if device != "cuda":
            return cls(device=device, **asked)
        defaults: dict[str, Any] = {
            "inputs": DEVICE_INPUTS,
            "codecs": None,
            "peers": tuple(DEVICE_PEERS),
            "sizes": DEVICE_SIZES,
            "rounds": _MIN_DEVICE_ROUNDS,
            "warmup": 3,
        }
        # one thread, because the host's work for a device is not parallel
        return cls(device=device, **{**defaults, **asked, "threads": (1,)})

    def smoke(self) -> KernelsConfig:
        """Return the plan reduced to 1 MiB inputs and one round, to check that everything runs."""
        return replace(self, sizes=(SMOKE_NBYTES,), rounds=1, warmup=1)

    def groups(self) -> list[Group]:
        """Return the groups of candidates that are measured together.

        Raises:
            SpecError: an input does not exist on the device.
        """
        groups = []
        has_candidates = self.codecs is None or self.codecs or self.peers
        for name in self.inputs if has_candidates else ():
            sizes, own = self.sizes, bounds_of
            if self.device == "cuda":
                sizes, own = sizes_of(name, self.sizes), device_bounds_of
            bounds: list[float | None] = [*(self.bounds or own(name)), None]
            groups += [Group(name, nbytes, bound) for nbytes in sizes for bound in bounds]
        return groups

    def codecs_of(self, name: str) -> tuple[str, ...]:
        """Return the codecs to measure on an input."""
        return _OWN_CODECS.get(name, DEVICE_CODECS) if self.codecs is None else self.codecs


def _with_operations(asked: dict[str, Any]) -> dict[str, Any]:
    """Separate operations from codecs; the default is all operations if their input is measured."""
    is_measured = INPUT in asked.get("inputs", (INPUT,))
    if "codecs" not in asked:
        return {"operations": tuple(OPERATIONS) if is_measured else (), **asked}
    codecs, operations = split_names(asked["codecs"])
    if operations and not is_measured:
        raise SpecError(f"{operations[0]} is measured on {INPUT}; add {INPUT} to the inputs")
    return {"operations": operations, **asked, "codecs": codecs}


@dataclass(frozen=True, slots=True)
class Group:
    """An input at one size and bound; a bound of None selects candidates without one."""

    input: str
    nbytes: int
    relative_bound: float | None

    @property
    def label(self) -> str:
        """The progress label of the group."""
        size = f"{self.input}, {self.nbytes / 2**20:.0f} MiB"
        bound = self.relative_bound
        return size if bound is None else f"{size}, relative bound {bound:g}"

    def make(self, device: torch.device) -> BenchInput:
        """Generate the input on the device."""
        if device.type == "cuda":
            return make_device_input(self.input, self.nbytes, device)
        return make_input(self.input, self.nbytes)
