"""A GPU that is not there, and costs that were never measured."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from tersor.codecs.costs import Costs, lookup
from tersor.codecs.costs.shipped import H200

DEVICE = torch.device("cuda", 0)
GPU = "Planted GPU 9000"
COSTS = replace(H200, device=GPU, source="measured")


class PlantedGpu:
    """Stands for ``torch.cuda`` and ``measure_costs``; counts the measurements."""

    def __init__(self) -> None:
        self.name = GPU
        self.num_measured = 0
        self.is_capturing = False
        self.error: Exception | None = None

    def measure(self, device: torch.device, name: str) -> Costs:
        assert device.type == "cuda"
        self.num_measured += 1
        if self.error:
            raise self.error
        return replace(COSTS, device=name)

    def restart(self) -> None:
        """Forget what a new process would not know."""
        lookup._known.clear()


def plant(monkeypatch: pytest.MonkeyPatch) -> PlantedGpu:
    gpu = PlantedGpu()
    monkeypatch.setattr(lookup, "_known", {})
    monkeypatch.setattr(lookup, "measure_costs", gpu.measure)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: gpu.name)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.is_capturing)
    return gpu
