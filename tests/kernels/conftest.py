"""Threads on demand: kernels split inputs of any size over as many as a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tersor.kernels.runtime import threads


@pytest.fixture
def use_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Set the number of threads for the length of one test, however little there is to do."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_MIN_NBYTES_PER_THREAD", 1)
    yield torch.set_num_threads
    torch.set_num_threads(before)
