"""Which of two times stands where, on a device that only keeps the time."""

from __future__ import annotations

import json

import pytest
import torch
from msgspec import structs

from tersor.bench.core import timing
from tersor.bench.core.ceiling import Ceiling
from tersor.bench.core.compare import compare_rows
from tersor.bench.core.inputs import make_input
from tersor.bench.core.lead_times import LeadTimes
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.subject import Subject
from tersor.bench.core.timing import Clocks, LoopClock, Percentiles, clocks_of
from tersor.bench.core.trial import run_trial, time_trials
from tersor.bench.peers.memcpy import DeviceCopy
from tersor.errors import SpecError
from tests.bench.core.test_rows import make_row
from tests.bench.simulated_device import SimulatedDevice

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
US = 1e-6


@pytest.fixture
def device(monkeypatch):
    return SimulatedDevice().patch(monkeypatch)


def times(middle):
    return Percentiles(middle, middle, middle)


@pytest.mark.parametrize(
    ("host_us", "device_us", "loop_us"), [(100, 20, 100), (20, 100, 100), (50, 50, 50)]
)
def test_a_loop_sees_the_slower_of_host_and_device_and_a_lead_hides_the_host(
    device, host_us, device_us, loop_us
):
    own, lead = clocks_of(CUDA)

    def task():
        device.launch(host_us * US, device_us * US)

    # the first call starts before the device, or the last one ends after the host
    assert own.seconds(task) / US == pytest.approx(loop_us, rel=0.02)
    assert lead.seconds(task) / US == pytest.approx(device_us)
    assert (own.kind, lead.kind) == ("loop", "lead")


def test_a_call_that_waits_has_the_host_in_both_times(device):
    own, lead = clocks_of(CUDA)

    def task():
        device.launch(10 * US, 50 * US)
        device.wait()
        device.launch(30 * US, 50 * US)

    # two kernels, and between them the host's 30 us: while it queues the first, the device is busy
    assert own.seconds(task) / US == pytest.approx(130, rel=0.02)
    assert lead.seconds(task) / US == pytest.approx(130)


def test_a_loop_of_slow_calls_is_short_and_one_of_quick_calls_has_128(device):
    calls = []

    def quick():
        calls.append("quick")
        device.launch(1 * US, 10 * US)

    def slow():
        calls.append("slow")
        device.launch(1 * US, 3000 * US)

    clock = LoopClock(CUDA, most_s=0.01)
    for task in (quick, slow) * 2:
        clock.seconds(task)
    # besides the calls of each that size its loop
    assert calls.count("quick") == 2 * 128 + timing._SIZING_CALLS
    assert calls.count("slow") == 2 * 3 + timing._SIZING_CALLS


def coded(monkeypatch, device):
    """Return a trial whose encode keeps the host busy longer than the device, and decode the opposite."""
    trial = run_trial(DeviceCopy(), Subject.of(make_input("gradients", 2**16), None), threads=1)
    encode, decode = DeviceCopy.encode_all, DeviceCopy.decode_all

    def slow_to_queue(self, xs, bounds):
        device.launch(200 * US, 40 * US)
        return encode(self, xs, bounds)

    def slow_to_run(self, encoded, outs):
        device.launch(5 * US, 80 * US)
        return decode(self, encoded, outs)

    monkeypatch.setattr(DeviceCopy, "encode_all", slow_to_queue)
    monkeypatch.setattr(DeviceCopy, "decode_all", slow_to_run)
    return trial


def measured(trial, clocks):
    (found,) = time_trials([trial], device=CPU, rounds=2, warmup=0, clocks=clocks)
    subject = Subject.of(make_input("gradients", 2**16), None)
    identity = {"suite": "kernels", "codec": "copy", "version": "1", "spec": {}, "device": "cuda"}
    return ResultRow(
        **identity, input="gradients", num_values=2**14, **trial.row_values(subject, found)
    )


def check_times(row):
    """Check what a row says of ``coded``: its own times have the host's share, those of ``lead`` do not."""
    assert row.clock == row.timed_by == "loop"
    assert row.encode_s.p50 / US == pytest.approx(200, rel=0.02)
    assert row.decode_s.p50 / US == pytest.approx(80, rel=0.02)
    assert row.lead.clock == "lead"
    assert row.lead.encode_s.p50 / US == pytest.approx(40)
    assert row.lead.decode_s.p50 / US == pytest.approx(80)


def test_a_row_s_own_times_are_those_of_a_loop_and_the_lead_has_a_block(monkeypatch, device):
    row = measured(coded(monkeypatch, device), clocks_of(CUDA))
    check_times(row)
    assert ResultRow.from_config(json.loads(json.dumps(row.to_config()))) == row


def test_the_check_finds_a_time_with_a_lead_in_the_place_of_a_loop_s(monkeypatch, device):
    trial, (own, lead) = coded(monkeypatch, device), clocks_of(CUDA)
    with pytest.raises(AssertionError):
        check_times(measured(trial, Clocks(lead)))
    row = measured(trial, Clocks(own, lead))
    with pytest.raises(AssertionError):
        check_times(structs.replace(row, encode_s=row.lead.encode_s))
    with pytest.raises(SpecError, match="lead must be null"):
        measured(trial, Clocks(lead, lead))


def test_the_ceiling_has_both_times_and_takes_no_memory(monkeypatch, device):
    ceiling = Ceiling(CPU, nbytes=2**16)
    monkeypatch.setattr(Ceiling, "__call__", lambda self: device.launch(30 * US, 20 * US))
    row = ceiling.row(rounds=1, warmup=0, clocks=clocks_of(CUDA))
    assert row.copy_s.p50 / US == pytest.approx(30, rel=0.02)
    assert row.lead.memcpy_s.p50 / US == pytest.approx(20)


def test_rows_of_the_cpu_are_timed_by_the_host_alone():
    own, lead = clocks_of(CPU)
    assert (own.kind, lead) == ("host", None)


OLD = {"device": "cuda", "copy_s": times(1e-3), "encode_s": times(1e-5), "memcpy_s": times(1e-6)}
LEAD = LeadTimes(encode_s=times(1e-5), decode_s=times(1e-5), memcpy_s=times(1e-6))
NEW = {"device": "cuda", "clock": "loop", "lead": LEAD, "memcpy_s": times(5e-6)}


def test_a_row_of_an_earlier_version_is_known_to_have_a_lead():
    row = make_row(**OLD)
    assert (row.clock, row.timed_by) == (None, "lead")
    assert row.lead_times.encode_s == row.encode_s
    assert set(row.times()) == {"lead encode", "lead decode"}
    assert make_row().timed_by is None
    assert make_row(device="cuda").timed_by is None, "times of other programs"


def test_times_with_a_lead_are_never_compared_with_those_of_a_loop():
    old, new = make_row(**OLD, decode_s=times(2e-5)), make_row(**NEW, encode_s=times(1e-4))
    (pair,) = compare_rows([old], [new]).pairs
    assert [(c.name, c.verdict) for c in pair.times] == [
        ("lead encode", "same"),
        ("lead decode", "faster"),
    ]
    (pair,) = compare_rows([new], [new]).pairs
    assert [c.name for c in pair.times] == ["encode", "decode", "lead encode", "lead decode"]


def test_each_time_is_divided_by_a_copy_that_was_timed_as_it_was():
    new = make_row(**NEW, encode_s=times(1e-4), decode_s=times(1e-4))
    (pair,) = compare_rows([new], [new], per_copy=True).pairs
    assert [c.before.p50 for c in pair.times] == pytest.approx([20, 20, 10, 10])


def test_copies_that_were_timed_in_two_ways_are_no_drift():
    old, new = make_row(**OLD), make_row(**NEW)
    assert not any("copying" in words for words in compare_rows([old], [new]).warnings)
    slow = make_row(**{**NEW, "lead": structs.replace(LEAD, memcpy_s=times(2e-6))})
    assert any("2.00 times" in words for words in compare_rows([old], [slow]).warnings)


@pytest.mark.parametrize("wrong", [{"clock": "lead"}, {"clock": None}, {"clock": "host"}])
def test_a_row_with_a_lead_and_anything_but_a_loop_is_refused(wrong):
    with pytest.raises(SpecError, match="lead must be null"):
        ResultRow.from_config({**make_row(**NEW).to_config(), **wrong})
    with pytest.raises(SpecError, match=r"^clock must be one that is known.*sundial"):
        ResultRow.from_config({**make_row(**NEW).to_config(), "clock": "sundial"})


@pytest.mark.gpu
def test_on_cuda_a_loop_has_the_host_s_share_and_a_lead_hides_it():
    x = torch.zeros(2**10, device=CUDA)

    def task():
        begin = timing.time.perf_counter()
        while timing.time.perf_counter() - begin < 500 * US:
            pass
        x.add_(1.0)

    own, lead = clocks_of(CUDA)
    own.seconds(task)
    assert own.seconds(task) > 490 * US
    assert lead.seconds(task) < 400 * US
