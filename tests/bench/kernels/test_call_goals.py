from __future__ import annotations

import pytest
from msgspec import structs

from tersor.bench.core.tables import goals_table
from tersor.bench.core.timing import Percentiles
from tersor.bench.kernels.call_goals import evaluate_call_goals
from tests.bench.core.test_rows import make_row
from tests.bench.kernels.test_cpu_goals import rendered

VALUES = 2**26


def seconds(middle):
    return Percentiles(middle, middle, middle)


def called(codec, name, encode_s, decode_s, **changes):
    """A row of a user's calls in a loop, whose times are given."""
    itemsize = 2 if name in ("tensor-bf16", "tensor-f16") else 4
    bound = 1e-3 if name.startswith("tensor") else 0.03
    facts = {
        "device": "cuda",
        "clock": "loop",
        "num_values": VALUES,
        "original_nbytes": itemsize * VALUES,
        "encoded_nbytes": VALUES,
        "spec": {"bound": {"relative": bound}},
    }
    times = {"encode_s": seconds(encode_s), "decode_s": seconds(decode_s)}
    return make_row(codec=codec, input=name, **times, **{**facts, **changes})


def at_speed(codec, encode_gbps, decode_gbps, name="tensor", **changes):
    nbytes = 4 * VALUES
    return called(codec, name, nbytes / encode_gbps / 1e9, nbytes / decode_gbps / 1e9, **changes)


def goal(rows, name):
    (found,) = [one for one in evaluate_call_goals(rows) if one.name.startswith(name)]
    return found


@pytest.mark.parametrize(
    ("codec", "encode", "decode"),
    [
        ("auto-compress", 500, 1000),
        ("flat-compress", 1000, 2000),
        ("ans-compress", 500, 900),
        ("delta-compress", 700, 1000),
        ("delta3-compress", 700, 1000),
    ],
)
def test_one_tensor_is_judged_in_both_directions_by_its_loop(codec, encode, decode):
    for factor, met in ((1.001, True), (0.999, False)):
        row = at_speed(codec, factor * encode, factor * decode)
        assert goal([row], f"one tensor: {codec} encodes at {encode} GB/s").met is met
        assert goal([row], f"one tensor: {codec} decodes at {decode} GB/s").met is met
    field = at_speed(codec, encode / 2, 9e3, "tensor-field")
    assert goal([row, field], f"one tensor: {codec} encodes").measured == pytest.approx(encode / 2)


@pytest.mark.parametrize("clock", ["lead", "host"])
def test_a_time_with_a_lead_meets_no_goal_of_a_loop(clock):
    rows = [
        at_speed("flat-compress", 9e3, 9e3, clock=clock),
        called("rows-batch", "lookups-256", 1e-6, 1e-6, clock=clock),
    ]
    assert goal(rows, "one tensor: flat-compress encodes").met is None
    assert goal(rows, "lookups-256: rows-batch encodes").met is None


def test_a_goal_for_a_loop_is_judged_by_the_loop_where_a_row_has_both():
    fast = at_speed("flat-compress", 9e3, 9e3)
    lead = structs.replace(fast, clock="lead").lead_times
    slow = at_speed("flat-compress", 100, 100, lead=lead)
    assert goal([slow], "one tensor: flat-compress encodes").measured == pytest.approx(100)


@pytest.mark.parametrize("name", ["tensor-bf16", "tensor-f16"])
@pytest.mark.parametrize(("encode_s", "met"), [(1.17e-3, True), (1.18e-3, False)])
def test_two_byte_floats_are_held_against_float32_by_values_per_second(name, encode_s, met):
    rows = [
        called("ans-compress", "tensor", 1e-3, 1e-3),
        called("ans-compress", name, encode_s, 1e-3),
    ]
    found = goal(rows, "bf16 and f16: ans-compress encodes")
    assert found.met is met
    assert found.measured == pytest.approx(1e-3 / encode_s)
    assert goal(rows, "bf16 and f16: ans-compress decodes").measured == 1
    assert goal(rows[1:], "bf16 and f16: ans-compress encodes").met is None


@pytest.mark.parametrize(
    ("codec", "name", "encode_us", "decode_us"),
    [
        ("rows-batch", "lookups-2048", 150, 100),
        ("ans-batch", "lookups-2048", 100, 60),
        ("rows-batch", "lookups-256", 90, 50),
        ("ans-batch", "lookups-256", 70, 40),
    ],
)
def test_look_ups_are_judged_by_most_microseconds(codec, name, encode_us, decode_us):
    for factor, met in ((0.999, True), (1.001, False)):
        row = called(codec, name, factor * encode_us / 1e6, factor * decode_us / 1e6)
        found = goal([row], f"{name}: {codec} encodes")
        assert (found.target, found.met, found.at_most) == (encode_us, met, True)
        assert found.measured == pytest.approx(factor * encode_us)
        assert goal([row], f"{name}: {codec} decodes").met is met


@pytest.mark.parametrize(("share", "met"), [(0.149, True), (0.151, False)])
@pytest.mark.parametrize("name", ["tensor", "tensor-bf16"])
def test_memory_beyond_the_payload_is_a_multiple_of_the_input(share, met, name):
    row = at_speed("flat-compress", 1, 1, name)
    taken = {"encode": row.encoded_nbytes + int(share * row.original_nbytes), "decode": 0}
    found = goal([structs.replace(row, workspace_nbytes=taken)], "one tensor: flat-compress takes")
    assert found.met is met
    assert found.measured == pytest.approx(share)
    assert goal([row], "one tensor: flat-compress takes").met is None


@pytest.mark.parametrize(("share", "met"), [(1.09, True), (1.11, False)])
@pytest.mark.parametrize(
    ("codec", "name"), [("rows-device", "embeddings"), ("ans-batch", "lookups-2048")]
)
def test_a_list_takes_little_more_than_its_input(codec, name, share, met):
    row = called(codec, name, 1, 1)
    taken = {"encode": int(share * row.original_nbytes), "decode": 0}
    found = goal([structs.replace(row, workspace_nbytes=taken)], f"lists: {codec} takes")
    assert found.met is met
    worse = structs.replace(row, input="lookups-256", workspace_nbytes={"encode": 2**30})
    assert goal([row, worse], f"lists: {codec} takes").measured == pytest.approx(4)


def test_the_table_says_which_goals_are_upper_limits():
    shown = rendered(goals_table([goal([], "lookups-256: ans-batch decodes")]))
    assert "at most 40" in shown
