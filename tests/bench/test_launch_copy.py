from __future__ import annotations

import pytest
import torch

from tersor.bench.peers import load_peer


@pytest.mark.parametrize("name", ["launch-copy", "launch-copy-graph"])
def test_a_launch_and_a_copy_give_back_every_list_they_were_given(name):
    peer = load_peer(name, "cuda")
    assert peer.name == name
    lists = [[torch.randn(3, 4), torch.randn(5)] for _ in range(2)]
    encoded = [peer.encode_all(xs, [0.0, 0.0]) for xs in lists]
    for xs, one in zip(lists, encoded, strict=True):
        assert peer.total_nbytes(one) == 17 * 4
        for x, y in zip(xs, peer.decode_all(one, xs), strict=True):
            assert torch.equal(x, y)
