"""Work on a second stream comes after what was there before, and before what comes next."""

from __future__ import annotations

import pytest
import torch

from tersor.kernels.runtime.side_stream import fork_join

ROUNDS = 50


def joined(x: torch.Tensor, y: torch.Tensor, long: torch.Tensor) -> torch.Tensor:
    """Return ``2 * x + 2 * y + 1``, where a wait that is missing leaves out some of it.

    Work on ``long`` makes the side early if it does not wait, and late if nothing waits for it.
    """
    was = y.clone()
    y.zero_()
    y.add_(was + long.sum() * 0)
    with fork_join(x.device) as side:
        x.mul_(2)
        with side:
            y.mul_(2)
            for _ in range(3):
                y.add_(long.sum() * 0)
            y.add_(1)
    return x + y


def test_on_the_cpu_work_runs_one_after_the_other():
    x, y = torch.ones(5), torch.full((5,), 3.0)
    assert joined(x, y, torch.ones(1)).tolist() == [9.0] * 5


@pytest.mark.gpu
def test_both_chains_are_ordered_with_the_current_stream():
    long = torch.ones(1 << 26, device="cuda")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for k in range(ROUNDS):
                x = torch.full((4096,), float(k), device="cuda")
                y = torch.full((4096,), 1.0, device="cuda")
                assert bool((joined(x, y, long) == 2 * k + 3).all())


@pytest.mark.gpu
def test_a_failed_chain_is_waited_for():
    long = torch.ones(1 << 26, device="cuda")
    for _ in range(ROUNDS):
        y = torch.zeros(4096, device="cuda")
        with pytest.raises(ZeroDivisionError), fork_join(y.device) as side:  # noqa: PT012
            with side:
                y.add_(long.sum())
            raise ZeroDivisionError
        assert bool((y == long.numel()).all())


@pytest.mark.gpu
def test_a_graph_gets_both_chains():
    long, x, y = (torch.ones(n, device="cuda") for n in (1 << 22, 4096, 4096))
    joined(x, y, long)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = joined(x, y, long)
    for _ in range(3):
        x.fill_(5)
        y.fill_(7)
        graph.replay()
        assert bool((total == 25).all())
