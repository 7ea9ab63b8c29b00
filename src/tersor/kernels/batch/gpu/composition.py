"""Compositions for what fused kernels leave, run on the device or, if device memory is limited, on the host.

A composition holds up to 45 bytes per value (int32 codes, symbols, positions of escapes, and copies of all of them),
fused kernels less than 4. It writes and reads the same bytes on every backend.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tersor.kernels.runtime.op import use_backend
from tersor.kernels.runtime.sparing import is_sparing
from tersor.types import Bound

EncodeOne = Callable[[torch.Tensor, Bound], torch.Tensor]
"""Returns the payload of a tensor, on its device."""
DecodeOne = Callable[[torch.Tensor, torch.Tensor], None]
"""Decodes a payload, the second argument, into a contiguous tensor, the first; may raise ``CorruptDataError``."""


def second_pass_encoder(compose_one: EncodeOne) -> EncodeOne:
    """Return ``compose_one``; inside ``sparing_memory``, a function that calls it on the host."""
    if not is_sparing():
        return compose_one

    def encode(x: torch.Tensor, bound: Bound) -> torch.Tensor:
        with use_backend("cpu"):
            return compose_one(x.cpu(), bound).to(x.device)

    return encode


def second_pass_decoder(compose_one: DecodeOne) -> DecodeOne:
    """Return ``compose_one``; inside ``sparing_memory``, a function that calls it on the host."""
    if not is_sparing():
        return compose_one

    def decode(out: torch.Tensor, payload: torch.Tensor) -> None:
        with use_backend("cpu"):
            made = torch.empty_like(out, device="cpu")
            compose_one(made, payload.cpu())
        out.copy_(made)

    return decode
