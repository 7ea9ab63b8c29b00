from __future__ import annotations

import pytest
from msgspec import structs

from tersor.bench.core.blocks import Memory, Quality
from tersor.bench.core.lead_times import LeadTimes
from tersor.bench.core.rows import COPY_NBYTES
from tersor.bench.core.timing import Percentiles
from tersor.bench.kernels.tables import device_table, kernels_table
from tersor.bench.sites import evaluate_goals
from tests.bench.core.test_rows import make_row
from tests.bench.kernels.test_cpu_goals import rendered

GB = 10**9
TIMES = ("encode_s", "decode_s", "memcpy_s")


def on_cuda(codec, encode_gbps=1e4, decode_gbps=1e4, *, bound=0.03, **changes):
    """A row of 1 GB whose speeds, with a lead for the host, are given."""
    facts = {
        "input": "embeddings",
        "device": "cuda",
        "clock": "lead",
        "original_nbytes": GB,
        "encoded_nbytes": GB // 50,
        "spec": {} if bound is None else {"bound": {"relative": bound}},
    } | changes
    encode_s, decode_s = (
        facts["original_nbytes"] / GB / speed for speed in (encode_gbps, decode_gbps)
    )
    return make_row(
        codec=codec,
        encode_s=Percentiles(encode_s, encode_s, encode_s),
        decode_s=Percentiles(decode_s, decode_s, decode_s),
        **facts,
    )


def goal(rows, name):
    (found,) = [one for one in evaluate_goals(rows) if one.name.startswith(name)]
    return found


@pytest.mark.parametrize(
    ("codec", "encode", "decode"),
    [
        ("flat-absolute", 1600, 2800),
        ("flat-device-absolute", 2400, 3200),
        ("flat-graph-absolute", 2400, 3200),
        ("ans", 900, 1500),
        ("ans-device-absolute", 1200, 2200),
        ("ans-device", 1200, 2200),
        ("rows-ans", 600, 1500),
        ("rows-device", 1200, 2300),
    ],
)
def test_speed_is_judged_in_both_directions(codec, encode, decode):
    enough = on_cuda(codec, encode * 1.001, decode * 1.001)
    assert goal([enough], f"{codec} encodes").met is True
    assert goal([enough], f"{codec} decodes").met is True
    short = on_cuda(codec, encode * 0.999, decode * 0.999)
    assert goal([short], f"{codec} encodes").met is False
    assert goal([short], f"{codec} decodes").met is False


@pytest.mark.parametrize(
    ("codec", "target"), [("flat", 1200), ("flat-graph", 1600), ("flat-device", 1600)]
)
def test_a_relative_bound_has_a_goal_for_encoding_alone(codec, target):
    assert goal([on_cuda(codec, target + 1)], f"{codec} encodes at {target}").met is True
    assert goal([on_cuda(codec, target - 1)], f"{codec} encodes at {target}").met is False
    assert not any(g.name.startswith(f"{codec} decodes") for g in evaluate_goals([on_cuda(codec)]))


def test_kernels_are_judged_by_the_times_with_a_lead_alone():
    lead = LeadTimes(**{name: getattr(on_cuda("x", 1300, 1600), name) for name in TIMES})
    row = structs.replace(on_cuda("ans-device", 100, 100), clock="loop", lead=lead)
    assert goal([row], "ans-device encodes").measured == pytest.approx(1300)
    assert goal([row], "ans-device decodes").measured == pytest.approx(1600)
    assert goal([structs.replace(row, lead=None)], "ans-device encodes").met is None


@pytest.mark.parametrize("other", [{"input": "gradients"}, {"bound": 0.01}])
def test_speed_is_judged_on_the_look_ups_at_one_bound(other):
    assert goal([on_cuda("ans-device", **other)], "ans-device encodes").met is None


@pytest.mark.parametrize(("bound", "ratio"), [(0.01, 40), (0.03, 60)])
def test_rows_are_asked_for_a_ratio_at_two_bounds(bound, ratio):
    name = f"rows: ratio {ratio} at bound {bound}"
    enough = on_cuda("rows-device", bound=bound, encoded_nbytes=GB // ratio)
    assert goal([enough], name).met is True
    short = on_cuda("rows-device", bound=bound, encoded_nbytes=GB // ratio + 10**6)
    assert goal([short], name).met is False


def grouped(gbps, nbytes=COPY_NBYTES):
    # 9 bytes of every 8 move, so 0.85 of a ceiling of 4000 is 3022 of raw bytes
    copy_s = 2 * COPY_NBYTES / 4e12
    return on_cuda(
        "group4-hadamard",
        gbps,
        gbps,
        bound=None,
        original_nbytes=nbytes,
        encoded_nbytes=nbytes // 8,
        copy_s=Percentiles(copy_s, copy_s, copy_s),
    )


@pytest.mark.parametrize(("gbps", "met"), [(3023, True), (3021, False)])
@pytest.mark.parametrize("direction", ["encodes", "decodes"])
def test_groups_are_held_against_the_copy_by_bytes_moved(gbps, met, direction):
    assert goal([grouped(gbps)], f"group4 with Hadamard {direction}").met is met


def test_groups_are_judged_on_inputs_as_large_as_the_copy():
    assert goal([grouped(9000, 2**26)], "group4 with Hadamard encodes").met is None


def chunks(codec, encode_us, decode_us, **changes):
    """A row of small chunks whose times are given."""
    encode_s, decode_s = encode_us / 1e6, decode_us / 1e6
    return make_row(
        codec=codec,
        input="chunks",
        device="cuda",
        clock="lead",
        spec={},
        encode_s=Percentiles(encode_s, encode_s, encode_s),
        decode_s=Percentiles(decode_s, decode_s, decode_s),
        **changes,
    )


@pytest.mark.parametrize("mode", ["device", "graph"])
def test_small_chunks_are_held_against_a_launch_and_a_copy_made_in_the_same_mode(mode):
    peers = {"device": "launch-copy", "graph": "launch-copy-graph"}
    rows = [chunks(peers[mode], 10, 8, peer=True), chunks(f"flat-{mode}", 29, 25)]
    assert goal(rows, f"chunks: flat-{mode} encodes within 3 times").met is True
    slow = goal(rows, f"chunks: flat-{mode} decodes")
    assert slow.met is False
    assert slow.measured == pytest.approx(24 / 25)
    (other,) = set(peers.values()) - {peers[mode]}
    rows = [chunks(other, 10, 8, peer=True), chunks(f"flat-{mode}", 1, 1)]
    assert goal(rows, f"chunks: flat-{mode} encodes").met is None


def test_each_device_has_its_own_goals():
    names = {one.name for one in evaluate_goals([on_cuda("flat")])}
    assert not any("memcpy" in name for name in names)
    both = {one.name for one in evaluate_goals([on_cuda("flat"), make_row()])}
    assert names < both


def test_rows_of_two_sizes_are_not_mistaken_for_each_other():
    rows = [on_cuda("flat", 1300), on_cuda("flat", 1000, num_values=7)]
    assert goal(rows, "flat encodes").measured == pytest.approx(1000)


def test_the_table_shows_the_loop_first_then_the_lead_and_what_memory_was_taken():
    lead = LeadTimes(**{name: getattr(grouped(3000), name) for name in TIMES})
    row = structs.replace(
        grouped(2000),
        clock="loop",
        lead=lead,
        num_launches={"encode": 5, "decode": 2},
        workspace_nbytes={"encode": 300 * 2**20, "decode": 0},
    )
    (line,) = [x for x in rendered(device_table([row])).splitlines() if "hadamard" in x]
    cells = [cell.strip() for cell in line.strip("│ ").split("│")]
    assert cells == [
        "embeddings 1024 MiB",
        "group4-hadamard",
        "8.00",
        "2000",
        "2000",
        "3000 / 3000",
        "56% / 56%",
        "5 / 2",
        "300 / 0",
        "0.29 / 0.00",
    ]


def test_a_row_whose_own_times_have_a_lead_has_no_speed_of_a_loop():
    old, new = on_cuda("ans", 111, 222), on_cuda("flat", 333, 444, clock="loop")
    shown = rendered(device_table([old, new])).splitlines()
    (line,) = [x for x in shown if "ans" in x and "embeddings" in x]
    assert [cell.strip() for cell in line.strip("│ ").split("│")][4:7] == ["", "", "111 / 222"]
    alone = rendered(device_table([old]))
    assert "encode GB/s" not in alone
    assert "with lead GB/s" in alone


@pytest.mark.parametrize("table", [device_table, kernels_table])
def test_quality_and_memory_are_columns_where_a_row_has_them(table):
    plain = on_cuda("flat")
    assert "PSNR" not in rendered(table([plain]))
    good = on_cuda("ans", quality=Quality(psnr_db=41.5), memory=Memory(held_nbytes=3 << 20))
    shown = rendered(table([plain, good]))
    assert "PSNR dB" in shown
    assert "held MiB" in shown
    assert "41.5" in shown
    assert "peak" not in shown


def test_rows_on_codes_and_old_rows_have_no_share_and_no_footprint():
    row = on_cuda("huffman-codes", memcpy_s=None)
    shown = rendered(device_table([row]))
    assert not any(name in shown for name in ("of ceiling", "launches", "peak"))
    assert "huffman-codes" in shown
