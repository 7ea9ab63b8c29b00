from __future__ import annotations

import json

import pytest
import torch

from tersor.errors import SpecError
from tersor.sites.embeddings import Exchange, ExchangeStats


def counted() -> ExchangeStats:
    """Return statistics of three exchanges."""
    exchange = Exchange([0, 0], [4, 8], codec="raw")
    for _ in range(3):
        rows = [torch.ones(6, 4, requires_grad=True), torch.ones(6, 8, requires_grad=True)]
        sum(y.sum() for y in exchange(rows)).backward()
    return exchange.stats


def test_statistics_go_on_from_their_json_form():
    stats = counted()
    again = ExchangeStats.from_config(json.loads(json.dumps(stats.to_config())))
    assert again.to_config() == stats.to_config()
    with again.forward_times.phase("encode", torch.device("cpu")):
        again.tables[1].add(1, 1)
    assert again.forward.original_nbytes == stats.forward.original_nbytes + 1
    assert again.forward_times.read()["encode"] > stats.forward_times.read()["encode"]


@pytest.mark.parametrize(
    "change",
    [
        {"num_exchanges": None},
        {"num_exchanges": -1},
        {"tables": []},
        {"tables": {"0": [1]}},
        {"tables": {"0": [-1, 1]}},
        {"tables": {"first": [1, 1]}},
        {"forward": {}},
        {"backward": {"seconds": {"encode": 1.0}}},
    ],
)
def test_what_are_no_statistics_is_refused(change):
    with pytest.raises(SpecError, match="no statistics of an exchange"):
        ExchangeStats.from_config({**counted().to_config(), **change})
