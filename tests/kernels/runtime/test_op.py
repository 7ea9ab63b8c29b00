"""Choosing a backend: by device, by force, and never silently."""

from __future__ import annotations

import pytest
import torch

from tersor.errors import BackendUnavailableError, SpecError
from tersor.kernels.quantize import finite_range
from tersor.kernels.runtime.op import Op, backend_for, use_backend
from tests.checks import assert_rejects


def test_the_device_chooses_the_backend():
    assert backend_for(torch.device("cpu")) == "cpu"
    assert backend_for(torch.device("cuda")) == "gpu"


def test_a_forced_backend_is_taken_and_given_back(monkeypatch):
    with use_backend("reference"):
        assert backend_for(torch.device("cuda")) == "reference"
        with use_backend("cpu"):
            assert backend_for(torch.device("cuda")) == "cpu"
    assert backend_for(torch.device("cpu")) == "cpu"
    monkeypatch.setenv("TERSOR_KERNELS", "reference")
    assert backend_for(torch.device("cpu")) == "reference"


def test_unknown_backends_are_refused(monkeypatch):
    assert_rejects(lambda: use_backend("fpga").__enter__(), SpecError)
    monkeypatch.setenv("TERSOR_KERNELS", "fpga")
    assert_rejects(lambda: finite_range(torch.zeros(3)), SpecError)


def test_a_missing_kernel_says_the_way_out():
    op = Op("shrink", {"reference": "tersor.kernels.quantize.reference:finite_range"})
    error = assert_rejects(lambda: op(torch.zeros(3)), BackendUnavailableError)
    assert "TERSOR_KERNELS=reference" in str(error)
    error = assert_rejects(
        lambda: finite_range(torch.empty(3, device="meta")), BackendUnavailableError
    )
    assert "finite_range" in str(error)


def test_a_missing_package_is_named(monkeypatch):
    op = Op("shrink", {"cpu": "tersor.kernels.nowhere.cpu:shrink"})

    def without_numba(name):
        raise ImportError("No module named 'numba'", name="numba")

    monkeypatch.setattr("tersor.kernels.runtime.op.import_module", without_numba)
    error = assert_rejects(lambda: op(torch.zeros(3)), BackendUnavailableError)
    assert "numba" in str(error)


def test_a_broken_kernel_is_no_missing_package():
    op = Op("shrink", {"cpu": "tersor.kernels.nowhere.cpu:shrink"})
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        op(torch.zeros(3))
