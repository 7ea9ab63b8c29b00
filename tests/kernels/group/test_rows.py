"""Groups of several rows, written to and read from the buffers that peers exchange."""

from __future__ import annotations

import pytest
import torch

from tersor.kernels.group import (
    group_dequantize,
    group_dequantize_sum_quantize,
    group_quantize,
    reference,
)
from tersor.kernels.runtime.op import use_backend
from tersor.testing import assert_bits_equal
from tests.kernels.test_conformance import DEVICES, INTERPRETED

NUM_NODES, PER_NODE, SIZE = 2, 3, 300


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=[] if INTERPRETED else pytest.mark.gpu)])
def device(request):
    with use_backend(request.param):
        yield torch.device(DEVICES[request.param])


def views(num_peers, num_rows, num_groups, nbits, group, device):
    """Return the buffer of a hop, whose peers get scales and then data, and views of both."""
    split = 4 * num_rows * num_groups
    buffer = torch.zeros(
        num_peers, split + num_rows * num_groups * group * nbits // 8, device=device
    )
    buffer = buffer.to(torch.uint8)
    scales = buffer[:, :split].view(torch.float32).unflatten(1, (num_rows, num_groups))
    return buffer, scales, buffer[:, split:].unflatten(1, (num_rows, -1))


@pytest.mark.parametrize("nbits", [8, 4])
@pytest.mark.parametrize("group", [128, 96])
def test_rows_are_written_in_the_order_of_peers(nbits, group, generator, device):
    x = torch.randn(NUM_NODES, PER_NODE, SIZE, generator=generator).to(device)
    num_groups = -(-SIZE // group)
    buffer, scales, data = views(PER_NODE, NUM_NODES, num_groups, nbits, group, device)
    group_quantize(x, nbits, group, 9, True, (scales.transpose(0, 1), data.transpose(0, 1)))
    expected = reference.group_quantize(x.cpu(), nbits, group, 9, True)
    for peer in range(PER_NODE):
        parts = [
            expected[0][:, peer].reshape(-1).view(torch.uint8),
            expected[1][:, peer].reshape(-1),
        ]
        assert_bits_equal(buffer[peer].cpu(), torch.cat(parts))


@pytest.mark.parametrize("group", [128, 96])
def test_sums_are_read_and_written_in_such_buffers(group, generator, device):
    x = torch.randn(PER_NODE, NUM_NODES, SIZE, generator=generator).to(device)
    num_groups = -(-SIZE // group)
    _, scales, data = views(PER_NODE, NUM_NODES, num_groups, 8, group, device)
    group_quantize(x, 8, group, 1, False, (scales, data))
    _, new_scales, new_data = views(NUM_NODES, 1, num_groups, 4, group, device)
    targets = (new_scales.squeeze(1), new_data.squeeze(1))
    group_dequantize_sum_quantize(data, scales, 8, group, 4, 2, targets)
    sent = reference.group_quantize(x.cpu(), 8, group, 1)
    total = reference.group_dequantize(sent[1], sent[0], 8, group)
    expected = reference.group_quantize(total.view(NUM_NODES, -1), 4, group, 2)
    assert_bits_equal(targets[0].cpu(), expected[0])
    assert_bits_equal(targets[1].cpu(), expected[1])
    out = torch.ones(NUM_NODES, SIZE + 5, device=device)[:, :SIZE]
    group_dequantize(
        new_data.transpose(0, 1), new_scales.transpose(0, 1), 4, group, False, out, True
    )
    added = torch.ones(NUM_NODES, SIZE)
    reference.group_dequantize(expected[1][None], expected[0][None], 4, group, False, added, True)
    assert_bits_equal(out.cpu(), added)


def test_rows_round_differently(generator):
    row = torch.randn(256, generator=generator)
    _, data = group_quantize(row.expand(2, -1), 4, 128, 5)
    assert not torch.equal(data[0], data[1])


def test_a_row_in_pieces_is_refused(device):
    x = torch.zeros(128, 2, device=device).t()
    with pytest.raises((ValueError, RuntimeError)):
        group_quantize(x, 4, 128)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_more_dimensions_than_kernels_take_are_refused(backend) -> None:
    with pytest.raises(ValueError, match="at most three dimensions"):
        group_quantize.implementation(backend)(torch.ones(2, 2, 2, 64), 4, 64)
