"""Without torchrec everything else works, and its codecs say what to install."""

from __future__ import annotations

import sys

import pytest

from tersor.errors import BackendUnavailableError
from tersor.sites.embeddings.torchrec import torchrec_codecs


def test_the_missing_package_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrec", None)
    with pytest.raises(
        BackendUnavailableError, match=r"pip install 'tersor\[torchrec\]'"
    ) as caught:
        torchrec_codecs(["one", "two"])
    assert "\n" not in str(caught.value)
