"""What encoding a quantized tensor gives, before it is a payload."""

from __future__ import annotations

import torch

Encoded = tuple[float, torch.Tensor, torch.Tensor, torch.Tensor]
"""Step of the grid; bytes of room for a header and the body; positions (int64) and values of the
outliers."""
