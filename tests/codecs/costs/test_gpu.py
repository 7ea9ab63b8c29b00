"""A real GPU is measured in a moment, and a second process reads what the first one found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from tersor.codecs.costs import CostCache, lookup, renewed_costs_on
from tests.arch.source_files import REPOSITORY

pytestmark = pytest.mark.gpu
SECOND_PROCESS = """
import json, torch
import tersor
from tersor.codecs.costs import costs_on, lookup

def refuse(*arguments):
    raise AssertionError("measured again")

lookup.measure_costs = refuse
device = torch.device("cuda")
x = torch.randn(1 << 20, device=device)
reason = tersor.compress(x, tersor.Bound.relative(0.01)).reason
print(json.dumps({"codecs": costs_on(device).to_config(), "reason": reason}))
"""


def test_a_gpu_is_measured_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(lookup, "_known", {})
    device = torch.device("cuda")
    # compiles
    renewed_costs_on(device)
    begin = time.perf_counter()
    costs = renewed_costs_on(device)
    assert time.perf_counter() - begin < 1.0
    assert CostCache.of_user().load(costs.device) == costs
    for cost in costs.codecs.values():
        # a launch takes microseconds, and no card is slower than a CPU
        assert 1 < cost.encode_fixed_us + cost.decode_fixed_us < 1e5
        assert cost.encode_gb_s > 1
        assert cost.decode_gb_s > 1
    assert costs.codecs["flat"].encode_gb_s > costs.codecs["ans-wide"].encode_gb_s

    env = os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS], env=env, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["codecs"] == costs.to_config()
    assert "costs measured on this GPU" in found["reason"]
