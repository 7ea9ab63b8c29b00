"""What several tests of data share."""

from __future__ import annotations

import pytest

from tersor.workloads.data import source_files


@pytest.fixture
def small_blocks(monkeypatch):
    """Let a log of a few hundred lines have many blocks."""
    monkeypatch.setattr(source_files, "_BLOCK_NBYTES", 4096)
