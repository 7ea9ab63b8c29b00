"""What a fused kernel makes of a list of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tersor.kernels.batch.encoded_list import Unwritten


class FusedList(NamedTuple):
    """Payloads of a list, all on the device.

    Attributes:
        sizes: int64 [num_tensors], bytes of each payload.
        memory: uint8, the payloads back to back, each padded to 8 bytes, and room behind them that is not
            written; or what writes them.
        needed: int32 [num_tensors], not 0 where the kernel does not know the form of a payload, and stored
            the tensor exactly; None if it knows all forms.
        keys: the ranges of the tensors as ``quantize.range_keys`` keeps them, if the kernel found them.
    """

    sizes: torch.Tensor
    memory: torch.Tensor | Unwritten
    needed: torch.Tensor | None = None
    keys: torch.Tensor | None = None
