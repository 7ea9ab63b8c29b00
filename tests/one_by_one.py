"""A base for the codecs that tests plant: a payload at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tersor import Bound, Codec, EncodedList
from tersor.codecs.arguments import checked_payload
from tersor.kernels.batch.encoded_list import finish_decoding


@dataclass(frozen=True, kw_only=True)
class OneByOne(Codec):
    """Write and read one tensor; a list is done one by one."""

    @abstractmethod
    def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        """Return the payload of a contiguous tensor."""

    @abstractmethod
    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """Decode into the contiguous ``out``."""

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        codecs = [self] * len(xs) if bounds is None else [replace(self, bound=b) for b in bounds]
        promises = [codec.resolve_bound(x) for codec, x in zip(codecs, xs, strict=True)]
        return EncodedList.apart([self.write(*pair) for pair in zip(xs, promises, strict=True)], xs)

    def decode(self, encoded: EncodedList, outs: Sequence[torch.Tensor]) -> None:
        for payload, out in zip(encoded.payloads(), outs, strict=True):
            self.read(payload, out)


def decode_one(codec: Codec, payload: torch.Tensor, out: torch.Tensor) -> None:
    """Decode a payload that may lie anywhere into a contiguous tensor."""
    decode_list(codec, [payload], [out])


def decode_list(
    codec: Codec, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> None:
    """Decode payloads that may lie anywhere into contiguous tensors."""
    payloads = [checked_payload(payload) for payload in payloads]
    finish_decoding(codec.decode(EncodedList.apart(payloads), outs), payloads, outs)
