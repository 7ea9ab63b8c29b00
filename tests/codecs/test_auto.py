"""``auto`` takes what is smallest or fastest, says so, and keeps the bound."""

from __future__ import annotations

import pytest
import torch

from tersor import Bound, compress, create, decompress
from tersor.codecs.auto import Auto
from tersor.errors import SpecError
from tests import data
from tests.checks import assert_rejects, assert_within_bound


def lookups() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(100, 64, generator=generator)
    return table[torch.randint(0, 100, (4000,), generator=generator)]


def field() -> torch.Tensor:
    line = torch.linspace(0, 9, 200)
    return torch.sin(line)[:, None] + torch.cos(line * 2)[None, :]


def test_repeated_rows_are_found():
    packed = compress(lookups(), Bound.relative(0.03))
    assert packed.codec.codec_id == "rows"


def test_smooth_fields_are_predicted():
    packed = compress(field(), Bound.relative(1e-4))
    assert packed.codec.to_config()["lorenzo"] == 2


def test_the_choice_is_recorded_with_its_reason():
    packed = compress(lookups(), Bound.relative(0.03))
    assert packed.reason.startswith("rows (")
    assert "smallest of" in packed.reason
    assert "ratio" in packed.reason
    assert "\n" not in packed.reason
    assert compress(lookups(), Bound.relative(0.03), codec="rows").reason == ""


def test_the_choice_is_the_smallest_of_the_candidates():
    for x in (lookups(), field(), data.make("noise", torch.float32)):
        auto = Auto(bound=Bound.relative(1e-3))
        packed = auto.encode(x)
        sizes = [codec.encode(x).nbytes for codec in auto.candidates(x)]
        assert packed.nbytes == min(sizes)


def test_bandwidth_changes_the_choice():
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(2))
    chosen = {}
    for gbps in (0.01, 1000.0):
        packed = compress(x, Bound.relative(1e-3), bandwidth_gbps=gbps)
        assert f"{gbps:g} GB/s" in packed.reason
        chosen[gbps] = packed.codec.codec_id
    # over a slow link only size counts, over a fast one only the time of coding
    assert chosen == {0.01: "huffman", 1000.0: "flat"}


@pytest.mark.parametrize("gbps", [None, 0.1, 100.0])
def test_bound_holds_for_a_sample_that_misleads(gbps):
    """The middle, where the sample is taken, is smooth; the ends are not."""
    x = torch.zeros(1 << 20)
    x[: 1 << 17] = torch.randn(1 << 17) * 1e6
    x[-5:] = torch.tensor([float("nan"), float("inf"), -1e30, 1e-40, 3e38])
    packed = compress(x, Bound.absolute(1e-3), bandwidth_gbps=gbps)
    assert_within_bound(x, decompress(packed), 1e-3)


def test_the_result_names_the_chosen_codec_so_that_it_decodes_alone():
    packed = compress(field(), Bound.absolute(0.01))
    assert packed.codec.codec_id != "auto"
    assert type(packed.codec).from_config(packed.codec.to_config()) == packed.codec


def test_auto_has_no_payload_of_its_own():
    auto = create("auto", bound=Bound.absolute(0.1))
    payload = torch.zeros(24, dtype=torch.uint8)
    assert_rejects(lambda: auto.decode_payload(payload, torch.zeros(3)), SpecError)
    assert_rejects(lambda: auto.encode_payload(torch.zeros(3), 0.1), SpecError)
