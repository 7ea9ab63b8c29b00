"""Splitting work: every item once, in order, and never a thread inside a thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from tersor.kernels.runtime import threads
from tersor.kernels.runtime.op import backend_for, use_backend


def test_parts_cover_everything_once(use_threads):
    for count in (1, 2, 3, 7):
        use_threads(count)
        for num_items in (0, 1, 2, 5, 100):
            parts = threads.split(num_items, 1)
            assert [i for start, stop in parts for i in range(start, stop)] == list(
                range(num_items)
            )
            assert len(parts) <= max(1, min(count, num_items))


def test_little_work_stays_on_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert len(threads.split(1000, 4)) == 1
    assert len(threads.split(1 << 20, 4)) == 2


def test_results_keep_their_order(use_threads):
    use_threads(4)
    assert threads.run(lambda start, stop: (start, stop), threads.split(100, 1)) == threads.split(
        100, 1
    )


def test_parts_run_on_threads_of_their_own_and_start_none(use_threads):
    use_threads(2)

    def part(start, stop):
        return threading.current_thread().name, threads.split(100, 1 << 20)

    (here, inner), (there, other_inner) = threads.run(part, threads.split(2, 1 << 20))
    assert here != there
    assert inner == other_inner == [(0, 100)]
    assert len(threads.split(2, 1)) == 2


def test_the_forced_backend_travels_into_threads(use_threads):
    use_threads(2)
    with use_backend("reference"):
        found = threads.run(lambda *_: backend_for(torch.device("cpu")), [(0,), (1,)])
    assert found == ["reference", "reference"]


@pytest.mark.parametrize("num_threads", [0, 1])
def test_parts_that_get_no_thread_run_here(use_threads, monkeypatch, num_threads):
    use_threads(4)
    pool, submitted = threads._pool(3), []

    class Full:
        def submit(self, *args):
            if len(submitted) == num_threads:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            submitted.append(args)
            return pool.submit(*args)

    monkeypatch.setattr(threads, "_pool", lambda count: Full())
    assert threads.run(lambda number: 2 * number, [(k,) for k in range(4)]) == [0, 2, 4, 6]
    assert len(submitted) == num_threads


AT_EXIT = """
import atexit, torch, tersor
torch.set_num_threads(2)
x = torch.linspace(0, 1, 2**21)
tersor.compress(x, tersor.Bound.relative(1e-3), codec="flat")
atexit.register(lambda: print(tersor.compress(x, tersor.Bound.relative(1e-3), codec="flat").nbytes))
"""


def test_a_last_save_works_while_the_interpreter_shuts_down():
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert int(done.stdout) > 0


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_in_any_part_is_raised(use_threads, bad):
    use_threads(2)

    def part(number):
        if number == bad:
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        threads.run(part, [(0,), (1,)])
