"""Costs are the line through the times at two sizes."""

from __future__ import annotations

import torch

from tersor.codecs.costs import measuring
from tersor.codecs.costs.measuring import MEASURED, measure_costs, median_seconds

CPU = torch.device("cpu")
SIZES = (1 << 16, 1 << 18)


class FakeClock:
    """Runs every task once, and answers with a line: 30 us and 2 GB/s, decoding twice as fast."""

    def __init__(self) -> None:
        self.num_tasks = 0

    def __call__(self, task, device, num_rounds) -> float:
        assert num_rounds >= 3
        result = task()
        decodes = isinstance(result, torch.Tensor)
        nbytes = result.nbytes if decodes else result.info.nbytes
        self.num_tasks += 1
        return (30e-6 + nbytes / 2e9) / (2 if decodes else 1)


def test_the_line_is_found():
    clock = FakeClock()
    costs = measure_costs(CPU, "a CPU", SIZES, clock)
    assert clock.num_tasks == len(SIZES) * 2 * len(MEASURED)
    assert (costs.device, costs.source) == ("a CPU", "measured")
    assert set(costs.codecs) == set(MEASURED)
    for cost in costs.codecs.values():
        found = (cost.encode_fixed_us, cost.encode_gb_s, cost.decode_fixed_us, cost.decode_gb_s)
        assert torch.allclose(torch.tensor(found), torch.tensor((30.0, 2.0, 15.0, 4.0)))


def test_a_large_tensor_that_takes_no_longer_leaves_all_time_to_the_call():
    costs = measure_costs(CPU, "a CPU", SIZES, lambda task, device, num_rounds: 1e-3)
    assert all(cost.encode_fixed_us == 1000 for cost in costs.codecs.values())
    assert all(cost.decode_gb_s > 0 for cost in costs.codecs.values())


def test_real_times_give_real_costs():
    costs = measure_costs(CPU, "a CPU", SIZES)
    assert all(cost.encode_gb_s > 0 for cost in costs.codecs.values())


def test_the_inputs_are_what_the_costs_are_named_after():
    """``rows`` meets repeated rows, and the second ``ans`` more codes than a fused kernel knows."""
    ratios = {}

    def note(task, device, num_rounds) -> float:
        result = task()
        if not isinstance(result, torch.Tensor):
            ratios.setdefault(len(ratios), result.ratio)
        return 1.0

    measure_costs(CPU, "a CPU", SIZES, note)
    by_name = dict(zip(MEASURED, ratios.values(), strict=False))
    assert by_name["rows"] > 3 * by_name["ans"]
    assert by_name["ans"] > 2 * by_name["ans-wide"]


def test_the_random_numbers_of_the_caller_stay_as_they_are():
    before = torch.get_rng_state()
    measure_costs(CPU, "a CPU", SIZES, FakeClock())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_time_of_a_task_is_the_median_after_a_first_that_does_not_count(monkeypatch):
    now = iter([0, 100, 100, 103, 103, 104, 104, 109])
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: float(next(now)))
    calls = []
    assert median_seconds(lambda: calls.append(1), CPU) == 3.0
    assert len(calls) == 4


def test_little_free_memory_makes_the_large_tensor_smaller(monkeypatch):
    for free_nbytes, expected in ((80 << 30, 1 << 28), (1 << 30, 1 << 25), (1 << 10, 1 << 18)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, n=free_nbytes: (n, n))
        assert measuring._large_nbytes(CPU) == expected
