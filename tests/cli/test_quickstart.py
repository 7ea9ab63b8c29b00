from __future__ import annotations

import pytest

from tersor.cli import quickstart
from tersor.codecs import registry
from tests.bench.planted import JustOver


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    monkeypatch.setattr(quickstart, "_INPUT_NBYTES", 1 << 18)
    monkeypatch.setattr(quickstart, "_ROUNDS", 1)


def test_every_input_is_checked_with_every_codec(tersor) -> None:
    done = tersor.ok("quickstart", "--json", "--rel", "0.03").json
    pairs = {(row["input"], row["codec"]) for row in done["rows"]}
    assert {name for name, _ in pairs} == {"embeddings", "gradients", "activations", "field"}
    assert len(pairs) == len(done["rows"]) >= 4 * 5
    assert all(0 < row["worst_error_over_bound"] <= 1 for row in done["rows"])
    assert all(choice["reason"] for choice in done["auto"])


def test_people_see_one_table_why_auto_chose_and_what_is_next(tersor) -> None:
    shown = tersor.ok("quickstart").out
    for words in ("embeddings", "worst error / bound", "auto on field", "tersor compress FILE.npy"):
        assert words in shown


def test_a_broken_bound_is_told(tersor, monkeypatch) -> None:
    monkeypatch.setitem(registry._codecs, JustOver.codec_id, JustOver)
    monkeypatch.setattr(quickstart, "_CODECS", (JustOver.codec_id,))
    done = tersor("quickstart", "--json")
    assert done.code == 1
    assert done.json["holds"] is False
    assert JustOver.codec_id in done.err
