"""Where the host must not wait for the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def errors_on_waiting() -> Iterator[None]:
    """Raise an error where the host waits for the device, as far as torch sees it."""
    with warnings.catch_warnings():
        # it warns that it does not see everything
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
