"""Which codec an exchange makes of a name on a device."""

from __future__ import annotations

import pytest
import torch

from tersor import Bound, create
from tersor.errors import SpecError
from tersor.sites.embeddings.plan import CANDIDATES, make_backward, make_codec


@pytest.mark.parametrize("device", [torch.device("cpu"), torch.device("cuda", 0)])
def test_an_exchange_makes_the_codec_that_a_name_means_on_the_device(device):
    for name in set(CANDIDATES) - {"huffman"}:
        bound = {} if name == "raw" else {"bound": Bound.relative(0.03)}
        assert make_codec(name, device) == create(name, device=device, **bound)


def test_huffman_gives_way_to_rans_on_cuda_alone():
    assert make_codec("huffman", torch.device("cuda")).codec_id == "ans"
    assert make_codec("huffman", torch.device("cpu")).codec_id == "huffman"


def test_a_codec_that_was_made_already_stays_as_it_is():
    given = create("rows", bound=Bound.relative(0.03))
    assert make_codec(given, torch.device("cuda")) is given


def test_a_bound_for_gradients_is_not_made_up():
    cpu = torch.device("cpu")
    with pytest.raises(SpecError, match="does not say within which error"):
        make_backward("ans", cpu)
    with pytest.raises(SpecError, match="cannot be sent with"):
        make_backward("auto", cpu)
    given = create("ans", bound=Bound.relative(0.01))
    assert make_backward(given, cpu) is given
    assert make_backward("group8", cpu) == create("group8")
