from __future__ import annotations

import pytest
import torch

from tersor.bench.peers import load_peer

NAMES = ["launch-copy", "launch-copy-graph"]


@pytest.mark.parametrize("name", NAMES)
def test_memory_that_now_holds_other_values_is_a_new_list(name):
    """As an allocator does, which gives the memory of one input to the next."""
    peer, memory = load_peer(name, "cuda"), torch.zeros(8)
    for length in (8, 8, 5):
        memory.normal_()
        x = memory[:length]
        encoded = peer.encode_all([x], [0.0])
        assert torch.equal(peer.decode_all(encoded, [x])[0], x)
        assert encoded is peer.encode_all([x], [0.0]), (
            "a list that is still there is not joined again"
        )
        del x, encoded
    assert len(peer._lists) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_launch_and_a_copy_give_back_every_list_they_were_given(name):
    peer = load_peer(name, "cuda")
    assert peer.name == name
    lists = [[torch.randn(3, 4), torch.randn(5)] for _ in range(2)]
    encoded = [peer.encode_all(xs, [0.0, 0.0]) for xs in lists]
    for xs, one in zip(lists, encoded, strict=True):
        assert peer.total_nbytes(one) == 17 * 4
        for x, y in zip(xs, peer.decode_all(one, xs), strict=True):
            assert torch.equal(x, y)
