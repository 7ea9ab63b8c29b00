"""The codecs of a TorchRec model: the registry for its sharders, and their attachment to its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist

from tersor.codecs.codec import Codec
from tersor.comm.agreement import check_same_everywhere
from tersor.comm.all_to_all import AllToAll
from tersor.errors import BackendUnavailableError, SpecError
from tersor.sites.embeddings.plan import (
    BoundsArgument,
    CodecPlan,
    make_backward,
    make_plan,
)
from tersor.sites.embeddings.stats import ExchangeStats
from tersor.sites.embeddings.torchrec.codec import (
    BackwardCodec,
    ForwardCodec,
    PassThrough,
    PooledCodec,
    Unattached,
)
from tersor.sites.embeddings.torchrec.route import (
    Blocks,
    blocks_of,
    pooled_routes,
    sequence_routes,
)
from tersor.warm_up import compile_lists

_POOLED: Final = "POOLED_EMBEDDINGS_ALL_TO_ALL"
_SEQUENCE: Final = "SEQUENCE_EMBEDDINGS_ALL_TO_ALL"


def torchrec_codecs(
    tables: Sequence[Any],
    *,
    bounds: BoundsArgument = None,
    codec: str | Codec = "rows",
    backward: str | Codec = "half",
    bandwidth_gbit_s: float | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    bandwidth_gbps: float | None = None,
) -> TorchRecCodecs:
    """Create the codecs to pass to TorchRec's sharders as ``qcomm_codecs_registry``.

    Call ``attach`` on the result, on every rank, once the model is sharded.

    Args:
        tables: the tables of the model, as configurations or names. ``bounds`` refers to them by name, or by number
            from 0.
        bounds: error bounds of looked-up rows. Either a policy; one bound for all tables, where a number is a relative
            bound; a dictionary of bounds by table number or name, with ``"default"`` for all other tables; or None for
            the default classes without decay.
        codec: codec of looked-up rows: an id, a codec, or ``"auto"`` to choose per table by predicted time. ``bounds``
            take precedence over a codec's own bound, and are required if it has one.
        backward: codec of the gradients: ``"none"`` leaves them to TorchRec uncompressed, ``"half"``, ``"group8"``, or
            any other id or codec. A codec with a bound must be given as an object.
        bandwidth_gbit_s: bandwidth of the network for ``"auto"``, in 10**9 bits per second; None for 10.
        device: device of the model.
        dtype: dtype of rows and gradients.
        bandwidth_gbps: deprecated: the bandwidth in 10**9 bytes per second.

    Raises:
        BackendUnavailableError: torchrec is not installed.
        SpecError: the arguments are invalid or contradict each other.
    """
    device = torch.device(device)
    names = _names_of(tables)
    plan = make_plan(
        codec, bounds, names, device,
        bandwidth_gbit_s=bandwidth_gbit_s, bandwidth_gbps=bandwidth_gbps,
    )  # fmt: skip
    gradients = None if backward == "none" else make_backward(backward, device)
    return TorchRecCodecs(names, plan, gradients, device, dtype)


def _names_of(tables: Sequence[Any]) -> tuple[str, ...]:
    names = tuple(str(getattr(table, "name", table)) for table in tables)
    if len(set(names)) != len(names):
        raise SpecError(f"tables need names of their own, not {', '.join(names)}")
    return names


class TorchRecCodecs(dict[str, Any]):
    """Codecs by TorchRec's name of the collective; created by ``torchrec_codecs``.

    Attributes:
        tables: the names of the tables, in the order of their numbers.
        stats: what this rank has sent.
    """

    def __init__(
        self,
        tables: tuple[str, ...],
        plan: CodecPlan,
        backward: Codec | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """See ``torchrec_codecs``; ``backward=None`` leaves gradients uncompressed."""
        self.tables = tables
        for one in self._formats(plan, backward):
            one.check_supported(dtype)
        self.stats = ExchangeStats(names=tables)
        self._plan, self._backward, self._device, self._dtype = plan, backward, device, dtype
        self._wire: AllToAll | None = None
        self._attached: list[Any] = []
        super().__init__(
            {
                name: _pair(Unattached(is_pooled), Unattached(is_pooled))
                for name, is_pooled in ((_POOLED, True), (_SEQUENCE, False))
            }
        )

    @staticmethod
    def _formats(plan: CodecPlan, backward: Codec | None) -> list[Codec]:
        return [*plan.candidates, *([] if backward is None else [backward])]

    @property
    def iteration(self) -> int:
        """The number of forward exchanges so far, by which bounds decay.

        When resuming, set it unless ``load_state_dict`` restores it.
        """
        return max((one.iteration for one in self._forward()), default=0)

    @iteration.setter
    def iteration(self, value: int) -> None:
        for one in self._forward():
            one.iteration = value

    def _forward(self) -> Iterator[ForwardCodec]:
        return (one for one in self._attached if isinstance(one, ForwardCodec))

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume training, as JSON-ready values; see ``Exchange.state_dict``.

        It covers only this rank's part of the attached model, so every rank must save its own.
        """
        return {"collectives": [one.plan.state_dict(one.iteration) for one in self._forward()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the iteration, bounds and codecs of a saved state. Call ``attach`` first.

        Raises:
            SpecError: ``state`` is malformed, or belongs to another model or other codecs.
        """
        given: object = state
        saved = given.get("collectives") if isinstance(given, Mapping) else None
        every = list(self._forward())
        if not isinstance(saved, list) or len(saved) != len(every):
            raise SpecError("this is no saved state of the codecs of this model; attach it first")
        for one, values in zip(every, saved, strict=True):
            one.load_state_dict(values)

    def reset_stats(self) -> ExchangeStats:
        """Return the statistics so far and reset them."""
        found, self.stats = self.stats, ExchangeStats(names=self.tables)
        for one in self._attached:
            one.stats = self.stats
        return found

    def close(self) -> None:
        """Leave the group of the exchanges. The model cannot be used afterwards."""
        if self._wire is not None:
            self._wire.group.close()

    def attach(self, model: torch.nn.Module) -> None:
        """Attach the codecs to a sharded model, whose layout determines which columns ranks exchange.

        This is a collective call. Repeat it whenever the model is resharded.

        Raises:
            SpecError: the model does not use these codecs, its sharding is not supported, or ranks created the codecs
                with different arguments.
        """
        numbers = {name: number for number, name in enumerate(self.tables)}
        places = [place for module in model.modules() for place in self._places(module)]
        if not places:
            raise SpecError(
                "no table of the model is exchanged with these codecs; give them to its sharder as "
                "qcomm_codecs_registry, and shard tables table-wise or column-wise"
            )
        blocks = [blocks_of(place.sharding, numbers) for place in places]
        if not dist.is_initialized() or dist.get_world_size() == 1:
            # TorchRec exchanges nothing on a single rank
            return
        for place, each in zip(places, blocks, strict=True):
            place.check(len(each))
        formats = self._formats(self._plan, self._backward)
        compile_lists(formats, self._dtype, self._device)
        terms = {
            "tables": self.tables, "sharding": blocks, **self._plan.terms(),
            "backward": self._backward, "dtype": self._dtype,
        }  # fmt: skip
        check_same_everywhere(terms, "codecs", None)
        self.close()
        channels = [(f"forward {k}", f"backward {k}") for k in range(len(places))]
        every = [channel for pair in channels for channel in pair]
        self._wire = AllToAll(None, formats, self._dtype, self._device, every)
        self._attached = []
        for place, each, names in zip(places, blocks, channels, strict=True):
            pair = self._make_codecs(place.is_pooled, each, self._wire, names)
            self._attached += (pair.forward, pair.backward)
            for part in place.parts:
                part._codecs = pair  # noqa: SLF001 - where TorchRec keeps what its sharder was given

    def _places(self, module: torch.nn.Module) -> Iterator[_Place]:
        """Yield every all-to-all of a sharded module that uses these codecs."""
        if getattr(module, "qcomm_codecs_registry", None) is not self:
            return
        shardings = getattr(module, "_embedding_shardings", None)
        if shardings is None:
            shardings = getattr(module, "_sharding_type_to_sharding", {}).values()
        for sharding, exchange in zip(shardings, getattr(module, "_output_dists", []), strict=True):
            parts = [part for part in exchange.modules() if _ours(part)]
            if parts:
                yield _Place(sharding, parts)

    def _make_codecs(
        self, is_pooled: bool, blocks: list[Blocks], wire: AllToAll, channels: tuple[str, str]
    ) -> Any:
        """Create the codecs of one all-to-all."""
        bounds = self._plan.bounds
        # each all-to-all has its own plan, because it counts its own iterations
        plan = replace(self._plan, choices={})
        rank = wire.group.rank
        there, back = (
            pooled_routes(blocks, rank)
            if is_pooled
            else sequence_routes(blocks, rank, lambda table: bounds.bound(table, 0).value)
        )
        kind = PooledCodec if is_pooled else ForwardCodec
        forward = kind(there, wire, self.stats, channels[0], plan)
        backward = (
            PassThrough(self._dtype, self.stats)
            if self._backward is None
            else BackwardCodec(back, wire, self.stats, channels[1], self._backward)
        )
        return _pair(forward, backward)


@dataclass(frozen=True, slots=True)
class _Place:
    """An all-to-all of a sharded model: the sharding of its tables, and the modules that run it."""

    sharding: Any
    parts: list[Any]

    @property
    def is_pooled(self) -> bool:
        """True if it sends pooled rows, False if it sends sequences."""
        return bool(_ours(self.parts[0])["_codecs"].forward.is_pooled)

    def check(self, num_ranks: int) -> None:
        """Raise ``SpecError`` unless all ranks of the job take part in the exchange."""
        part = self.parts[0]
        if "_codecs" not in _ours(part) or num_ranks != dist.get_world_size():
            kind = type(self.sharding).__name__
            raise SpecError(
                f"tables sharded by {kind} among some of the ranks cannot be compressed; shard them "
                "table-wise or column-wise among all, or give their sharder no codecs"
            )


def _ours(part: torch.nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that hold codec pairs of tersor."""
    return {
        name: value
        for name, value in vars(part).items()
        if isinstance(getattr(value, "forward", None), Unattached | ForwardCodec)
    }


def _pair(forward: Any, backward: Any) -> Any:
    try:
        from torchrec.distributed.types import QuantizedCommCodecs
    except ImportError as error:
        raise BackendUnavailableError(
            f"codecs for TorchRec need it installed: pip install 'tersor[torchrec]' ({error})"
        ) from error
    return QuantizedCommCodecs(forward, backward)
