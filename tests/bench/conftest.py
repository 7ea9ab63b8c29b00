from __future__ import annotations

import sys

import pytest

from tersor.bench.peers import PEERS, load_peer
from tersor.bench.peers import nvcomp as adapter
from tersor.errors import BackendUnavailableError
from tests.bench.peers import fake_nvcomp

# blosc2 sets an environment variable when it is imported; here it is no test's leak
for name in PEERS:
    try:
        load_peer(name)
    except BackendUnavailableError:
        continue


@pytest.fixture
def nvcomp(monkeypatch):
    """Put the fake in the place of nvCOMP, on a stream that has a number and without a device."""
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", fake_nvcomp)
    monkeypatch.setattr(adapter, "_stream", lambda: 7)
    monkeypatch.setattr(adapter, "_is_in_torch_memory", lambda: False)
