"""Triton types that tell a kernel the dtype of the values it reads through an integer address."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton.language as tl

F32, F64, F16, BF16 = (
    tl.constexpr(element) for element in (tl.float32, tl.float64, tl.float16, tl.bfloat16)
)
I32, I16, U8 = (tl.constexpr(element) for element in (tl.int32, tl.int16, tl.uint8))

TYPES: Final[dict[torch.dtype, Any]] = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.int32: tl.int32,
    torch.int16: tl.int16,
    torch.uint8: tl.uint8,
}
