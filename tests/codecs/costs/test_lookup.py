"""A GPU is measured once, and never where that could do harm."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from tersor import use_backend
from tersor.codecs.costs import CostCache, costs_on, lookup, renewed_costs_on
from tersor.codecs.costs.shipped import CPU, H200
from tersor.errors import BackendUnavailableError, SpecError
from tests.codecs.costs.planted import COSTS, DEVICE, GPU, plant


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return plant(monkeypatch)


def test_an_unknown_gpu_is_measured_once_for_all_processes(gpu):
    assert costs_on(DEVICE) == costs_on(DEVICE) == COSTS
    gpu.restart()
    assert costs_on(DEVICE) == COSTS
    assert gpu.num_measured == 1
    assert costs_on(DEVICE).origin == f"costs measured on this GPU ({GPU})"


def test_another_gpu_is_measured_for_itself(gpu):
    costs_on(DEVICE)
    gpu.name = "Another GPU"
    assert costs_on(DEVICE).device == "Another GPU"
    assert gpu.num_measured == 2


def test_a_damaged_cache_is_measured_again(gpu):
    costs_on(DEVICE)
    CostCache.of_user().path(GPU).write_text("{")
    gpu.restart()
    assert costs_on(DEVICE) == COSTS
    assert gpu.num_measured == 2
    assert CostCache.of_user().load(GPU) == COSTS


def test_without_a_cache_a_process_measures_once(gpu, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert costs_on(DEVICE) == costs_on(DEVICE) == COSTS
    assert gpu.num_measured == 1


def test_a_gpu_with_shipped_costs_is_not_measured_unless_a_user_asks(gpu):
    gpu.name = H200.device
    assert costs_on(DEVICE) is H200
    assert H200.origin == "costs of NVIDIA H200 (shipped)"
    assert gpu.num_measured == 0
    renewed_costs_on(DEVICE)
    gpu.restart()
    assert costs_on(DEVICE).source == "measured"
    assert gpu.num_measured == 1


def test_renewing_measures_whatever_is_cached(gpu):
    costs_on(DEVICE)
    renewed_costs_on(DEVICE)
    assert gpu.num_measured == 2
    with pytest.raises(SpecError, match="only costs of a GPU"):
        renewed_costs_on(torch.device("cpu"))


def test_a_gpu_that_cannot_be_measured_has_the_costs_of_another(gpu, caplog):
    gpu.error = torch.OutOfMemoryError("too little")
    found = costs_on(DEVICE)
    assert found is costs_on(DEVICE)
    assert (found.source, found.codecs) == ("assumed", H200.codecs)
    assert "since this GPU is not measured" in found.origin
    assert gpu.num_measured == 1
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "too little" in record.getMessage()


def test_nothing_is_measured_during_a_capture_and_later_it_is(gpu):
    gpu.is_capturing = True
    assert costs_on(DEVICE).source == "assumed"
    assert gpu.num_measured == 0
    gpu.is_capturing = False
    assert costs_on(DEVICE) == COSTS


def test_nothing_is_measured_in_a_forked_child(gpu):
    # a thread of the parent may be measuring, and never releases the lock in the child
    with lookup._one_at_a_time:
        child = os.fork()
        if child == 0:
            is_right = costs_on(DEVICE).source == "assumed" and gpu.num_measured == 0
            CostCache.of_user().store(COSTS)
            os._exit(0 if is_right and costs_on(DEVICE) == COSTS else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_measure_once(gpu):
    start = threading.Barrier(4)
    found = []

    def ask() -> None:
        start.wait()
        found.append(costs_on(DEVICE))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [COSTS] * 4
    assert gpu.num_measured == 1


def test_a_cpu_has_costs_of_its_own_and_the_interpreter_those_of_a_gpu(gpu):
    cpu = torch.device("cpu")
    assert costs_on(cpu) is CPU
    with use_backend("gpu"):
        assert costs_on(cpu).codecs == H200.codecs
    assert gpu.num_measured == 0


def test_costs_of_a_gpu_that_is_not_there_are_refused(monkeypatch):
    def no_cuda(device):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "get_device_name", no_cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with use_backend("gpu"), pytest.raises(BackendUnavailableError, match="no device 'cuda'"):
        costs_on(torch.device("cuda"))
