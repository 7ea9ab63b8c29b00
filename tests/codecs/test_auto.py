"""``auto`` takes what is smallest or fastest, says so, and keeps the bound."""

from __future__ import annotations

import re

import pytest
import torch

from tersor import Bound, Reader, compress, create, decompress, dumps, loads, save
from tersor.codecs.auto import Auto
from tersor.errors import SpecError
from tests import data
from tests.checks import assert_rejects, assert_within_bound
from tests.one_by_one import decode_one


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
        packed = auto.pack(x)
        sizes = [codec.pack(x).nbytes for codec in auto.candidates(x)]
        assert packed.nbytes == min(sizes)


def test_bandwidth_changes_the_choice():
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(2))
    chosen = {}
    for gbit_s in (0.1, 100.0, 1e6):
        packed = compress(x, Bound.relative(1e-3), bandwidth_gbit_s=gbit_s)
        assert f"{gbit_s:g} Gbit/s" in packed.reason
        chosen[gbit_s] = packed.codec.codec_id
    # over a slow link only size counts, over a fast one only the time of coding
    assert chosen == {0.1: "huffman", 100.0: "flat", 1e6: "raw"}


def test_a_gigabit_is_an_eighth_of_a_gigabyte():
    x = torch.randn(1 << 12, generator=torch.Generator().manual_seed(2))
    # one byte over 0.001 Gbit/s takes 8000 ns; coding is below 1 ns
    packed = compress(x, Bound.absolute(0.0), bandwidth_gbit_s=0.001)
    found = re.search(r"ratio [\d.]+, ([\d.]+) ms by costs of one CPU core", packed.reason)
    assert float(found[1]) == pytest.approx(8e-3 * x.nbytes / packed.ratio, rel=1e-3)


@pytest.mark.parametrize("gbit_s", [None, 0.1, 100.0])
@pytest.mark.parametrize("numel", [0, 1, 2, 10])
def test_a_small_tensor_never_grows(numel, gbit_s):
    x = torch.randn(numel, generator=torch.Generator().manual_seed(2))
    packed = compress(x, Bound.relative(1e-3), bandwidth_gbit_s=gbit_s)
    assert packed.nbytes <= x.nbytes
    assert packed.codec.codec_id == "raw"
    assert packed.reason.startswith("raw was")
    # the promise asked for is kept, though every bit is
    assert packed.error_bound is not None
    assert torch.equal(decompress(packed), x)


def test_raw_chosen_by_auto_is_an_exact_array_in_a_file(tmp_path):
    x = torch.randn(10, generator=torch.Generator().manual_seed(2))
    packed = compress(x, Bound.relative(1e-3))
    again = loads(dumps(packed))
    save(tmp_path / "x.tsr", {"x": x}, Bound.relative(1e-3))
    with Reader(tmp_path / "x.tsr") as reader:
        entry = reader.arrays["x"]
    for codec, error_bound, reason in (
        (again.codec, again.error_bound, again.reason),
        (entry.codec, entry.error_bound, entry.reason),
    ):
        assert codec == create("raw")
        assert error_bound is None
        assert reason == packed.reason


@pytest.mark.parametrize("gbit_s", [None, 0.1, 100.0])
def test_bound_holds_for_a_sample_that_misleads(gbit_s):
    """The middle, where the sample is taken, is smooth; the ends are not."""
    x = torch.zeros(1 << 20)
    x[: 1 << 17] = torch.randn(1 << 17) * 1e6
    x[-5:] = torch.tensor([float("nan"), float("inf"), -1e30, 1e-40, 3e38])
    packed = compress(x, Bound.absolute(1e-3), bandwidth_gbit_s=gbit_s)
    assert_within_bound(x, decompress(packed), 1e-3)


@pytest.mark.parametrize("gbit_s", [None, 0.1, 100.0])
def test_a_sample_that_misleads_never_makes_a_tensor_larger(gbit_s):
    x = torch.randn(1 << 20)
    x[(1 << 19) - (1 << 17) : (1 << 19) + (1 << 17)] = 0
    packed = compress(x, Bound.absolute(1e-9), bandwidth_gbit_s=gbit_s)
    assert packed.nbytes <= x.nbytes
    assert packed.reason.startswith("raw")
    assert_within_bound(x, decompress(packed), 1e-9)


def test_the_result_names_the_chosen_codec_so_that_it_decodes_alone():
    packed = compress(field(), Bound.absolute(0.01))
    assert packed.codec.codec_id != "auto"
    assert type(packed.codec).from_config(packed.codec.to_config()) == packed.codec


def test_auto_has_no_payload_of_its_own():
    auto = create("auto", bound=Bound.absolute(0.1))
    payload = torch.zeros(24, dtype=torch.uint8)
    assert_rejects(lambda: decode_one(auto, payload, torch.zeros(3)), SpecError)
    assert_rejects(lambda: auto.encode([torch.zeros(3)]), SpecError)
