"""Steps on links that were not there, predicted from a training that was."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tersor.bench.embeddings.planning.trained import links_cells, links_sentence, predicted_links
from tersor.errors import SpecError
from tersor.sites.embeddings import Volume
from tersor.workloads.dlrm.comparison import DlrmOutcome

STEPS, BATCH = 10, 1000
SAMPLE_NBYTES = 2000


def outcome(name: str, ratio: float, encode_s: float, decode_s: float) -> DlrmOutcome:
    """Return a training of two ranks: 2 MB of rows and of gradients per step, of both together."""
    original = STEPS * BATCH * SAMPLE_NBYTES
    direction = (
        Volume(original, round(original / ratio)),
        # waiting for the other rank and for loopback must not count on a link
        {"encode": STEPS * encode_s, "sizes": 77.0, "payload": 99.0, "decode": STEPS * decode_s},
    )
    exchange = {"seconds": {"encode": 0.0, "sizes": 0.1, "payload": 0.1, "decode": 0.0}}
    lines = [
        {"kind": "train", "step": STEPS, "loss": 0.5, "step_s": 0.05},
        {"kind": "exchange", "step": STEPS, "num_exchanges": STEPS, "forward": exchange,
         "backward": exchange},
    ]  # fmt: skip
    return DlrmOutcome(name, {}, lines, STEPS, {"forward": direction, "backward": direction})


PLAIN = outcome("uncompressed", 1.0, 0.0, 0.0)
SMALL = outcome("adaptive", 10.0, 0.002, 0.001)
# of 1 MB per rank each way half stays here; two messages of 5 us each way, sizes and payload
COMPUTE_S = (10 * 0.05 - 0.4) / 10
PLAIN_S = 2 * (0.5e6 * 8 / 1e9 + 10e-6)
SMALL_S = 2 * (0.05e6 * 8 / 1e9 + 10e-6 + 0.003)


def test_a_step_is_computing_coding_and_bytes_over_the_link() -> None:
    found = predicted_links(PLAIN, SMALL, batch=BATCH, num_ranks=2)
    assert found["compute_s"] == pytest.approx(COMPUTE_S)
    first, second, third = found["steps"]
    assert [one["gbit_s"] for one in found["steps"]] == [1.0, 10.0, 100.0]
    assert first["uncompressed_s"] == pytest.approx(COMPUTE_S + PLAIN_S)
    assert first["adaptive_s"] == pytest.approx(COMPUTE_S + SMALL_S)
    assert first["speedup"] == pytest.approx((COMPUTE_S + PLAIN_S) / (COMPUTE_S + SMALL_S))
    assert first["speedup"] > 1 > second["speedup"] > third["speedup"]
    # 0.9 of 0.5 MB each way are saved for 3 ms each way
    assert found["pays_up_to_gbit_s"] == pytest.approx(0.45e6 * 8 / 0.003 / 1e9, rel=1e-6)
    json.dumps(found, allow_nan=False)


def test_a_gain_below_one_is_said_to_be_slower() -> None:
    found = predicted_links(PLAIN, SMALL, batch=BATCH, num_ranks=2)
    assert links_sentence(found) == (
        "On a link of 1 / 10 / 100 Gbit/s a step would be 1.07 / 0.67 / 0.63 times as fast with "
        "compression: slower where below 1. It pays up to 1.2 Gbit/s."
    )
    assert links_cells(found)[1] == ["10", "10.8", "16.1", "0.67"]
    always = predicted_links(PLAIN, outcome("adaptive", 2.0, 0, 0), batch=BATCH, num_ranks=2)
    assert always["pays_up_to_gbit_s"] is None
    assert links_sentence(always).endswith("with compression. It pays on every link.")
    never = predicted_links(PLAIN, outcome("adaptive", 1.0, 1, 1), batch=BATCH, num_ranks=2)
    assert links_sentence(never).endswith("below 1. It pays on no link.")


def test_one_rank_has_no_link() -> None:
    with pytest.raises(SpecError, match="2 ranks at least"):
        predicted_links(PLAIN, replace(SMALL), batch=BATCH, num_ranks=1)
