"""Codecs that are declared as a pipeline of parts and the batch operations that run it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from tersor.codecs.bounded import BoundedCodec
from tersor.codecs.codec import Codec
from tersor.errors import SpecError
from tersor.kernels.batch.encoded_list import EncodedList, Undecoded
from tersor.kernels.batch.pipeline import Pipeline
from tersor.kernels.payload.frame import checked_memory
from tersor.kernels.runtime.op import Op
from tersor.types import Bound


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineCodec(Codec):
    """A codec declared by its parts, which one pair of batch operations runs on every backend."""

    encode_op: ClassVar[Op]
    decode_op: ClassVar[Op]

    @abstractmethod
    def pipeline(self) -> Pipeline[Any, Any]:
        """Return the transform, quantizer, predictor and encoder of the codec."""

    def batch_key(self) -> Hashable:
        """See ``Codec.batch_key``; codecs that differ only in their bound share a call."""
        return type(self), *(getattr(self, name) for name in self.option_names())

    def decode(self, encoded: EncodedList, outs: Sequence[torch.Tensor]) -> Undecoded | None:
        """See ``Codec.decode``."""
        undecoded: Undecoded | None = self.decode_op(outs, encoded, self.pipeline())
        return undecoded


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedPipeline(PipelineCodec, BoundedCodec):
    """A pipeline codec with an error bound."""

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """See ``Codec.encode``."""
        # ``pack`` resolves the codec's own bound from the ranges, so encoding must return them
        is_own = bounds is None
        bounds = [self.bound] * len(xs) if bounds is None else bounds
        encoded: EncodedList = self.encode_op(xs, bounds, self.pipeline(), with_ranges=is_own)
        return encoded


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedCodec(PipelineCodec):
    """A codec whose payload size follows from the shape."""

    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"

    def encode(
        self,
        xs: Sequence[torch.Tensor],
        bounds: Sequence[Bound] | None = None,
        *,
        seed: int | None = None,
        out: torch.Tensor | None = None,
    ) -> EncodedList:
        """See ``Codec.encode``; there is no error bound.

        Args:
            xs: the tensors to encode.
            bounds: ignored.
            seed: seed of stochastic rounding, which takes precedence over the codec's own. Only for codecs with
                ``takes_seed``.
            out: uint8 memory for the payloads, aligned to 8 bytes. Each payload takes its ``max_nbytes``, rounded up
                to a multiple of 8.

        Raises:
            SpecError: ``out`` does not fit, or the codec takes no seed.
        """
        del bounds
        encoded: EncodedList = self.encode_op(
            xs, self.pipeline(), **self.seeding(seed), out=self.memory(xs, out)
        )
        return encoded

    def workspace_nbytes(self, num_values: int, dtype: torch.dtype) -> int:
        """See ``Codec.workspace_nbytes``."""
        del dtype
        # kernels write values and payloads straight to their places, and hold tables of tiles alone
        return num_values

    def seeding(self, seed: int | None) -> dict[str, int | None]:
        """Return the keyword arguments that pass the seed to the batch operation.

        Raises:
            SpecError: a seed is given to a codec that takes none.
        """
        if seed is not None:
            raise SpecError(
                f"codec {self.codec_id!r} does not round stochastically; leave seed out"
            )
        return {}

    def memory(self, xs: Sequence[torch.Tensor], out: torch.Tensor | None) -> torch.Tensor | None:
        """Return ``out`` after checking that it can hold the payloads of ``xs``.

        Raises:
            SpecError: it cannot.
        """
        if out is None:
            return None
        sizes = [self.max_nbytes(tuple(x.shape), x.dtype) for x in xs]
        return checked_memory(out, sizes, xs[0].device)
