"""A codec, a rule or a pattern that cannot work is refused in one sentence when it is given."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tersor import SpecError
from tersor.codecs.rms import Rms
from tersor.sites import activations
from tests.sites.activations.models import cnn


@pytest.mark.parametrize("context", [activations.compressed, activations.compiled])
def test_a_model_in_place_of_a_codec_is_told_of_wrap(context) -> None:
    with pytest.raises(SpecError, match="takes a codec, not a model") as caught:
        context(cnn())
    words = str(caught.value)
    assert "Conv2d" not in words
    assert "\n" not in words
    assert "around the forward pass" in words
    if context is activations.compressed:
        assert "activations.wrap(model, ...)" in words


@pytest.mark.parametrize("context", [activations.compressed, activations.compiled])
@pytest.mark.parametrize(
    ("codec", "words"),
    [
        (None, "not None"),
        (0.5, "not 0.5"),
        (Rms, "not the class Rms"),
        (torch.zeros(1000, 1000), "not a Tensor"),
        ({"codec": "rms"}, "not a dict"),
    ],
)
def test_what_is_no_codec_is_refused(context, codec, words) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        context(codec)
    assert len(str(caught.value)) < 200


def test_wrap_takes_a_module_and_a_compression() -> None:
    with pytest.raises(SpecError, match="wrap takes a module, not a method"):
        activations.wrap(cnn().forward)
    with pytest.raises(SpecError, match=r"compression is one of activations.compressed, not 'rms'"):
        activations.wrap(cnn(), None, "rms")


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_rule_outside_of_the_context_is_refused(is_swapped) -> None:
    compression = activations.compressed(step=0.5)
    last = compression if is_swapped else nullcontext()
    refused = pytest.raises(SpecError, match="holds inside the open context only")
    with refused, compression.rule(None), last:
        pass
    with torch.no_grad(), compression, compression.rule(None):
        pass
