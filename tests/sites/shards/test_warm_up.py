"""``compress`` runs every kernel of an exchange once before the first step."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from tersor.sites.shards import Gradients, Weights, hop
from tersor.sites.shards.warm_up import warm_up

KERNELS = ("group_quantize", "group_dequantize", "group_dequantize_sum_quantize")
CPU = torch.device("cpu")


@pytest.mark.parametrize("reference", ["whole", "node"])
def test_every_kernel_of_an_exchange_runs_once_and_random_numbers_stay(reference):
    options = Weights(reference=reference), Gradients(), torch.bfloat16, torch.float32, CPU
    warm_up.cache_clear()
    before = torch.random.get_rng_state()
    for expected in (True, False):
        wraps = {name: mock.Mock(wraps=getattr(hop, name)) for name in KERNELS}
        with mock.patch.multiple(hop, **wraps):
            warm_up(*options)
        assert [wrap.called for wrap in wraps.values()] == [expected] * 3
    assert torch.equal(before, torch.random.get_rng_state())
