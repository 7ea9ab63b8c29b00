"""Autocast off, for functions that backward computes again from what the forward pass had cast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_disabled(device_type: str) -> AbstractContextManager[object]:
    """Turn autocast off for one type of device, at no cost if it is off already; ``backward`` may be called under it."""
    if not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
