"""The GPT has the published sizes and first weights, and sees no later token."""

from __future__ import annotations

import pytest
import torch

from tersor.errors import SpecError
from tersor.workloads.models.gpt import PRESETS, Gpt, GptShape, set_weights

SHAPE = GptShape(layers=2, width=32, heads=4, context=16, vocabulary=50)


def made(shape: GptShape = SHAPE, seed: int = 0) -> Gpt:
    model = Gpt(shape)
    set_weights(model, seed)
    return model


@pytest.mark.parametrize("shape", [SHAPE, GptShape(1, 12, 3, 7, 11)])
def test_the_number_of_parameters_is_that_of_the_model(shape):
    assert shape.num_parameters == sum(p.numel() for p in Gpt(shape).parameters())


@pytest.mark.parametrize(("name", "preset"), PRESETS.items())
def test_a_preset_has_about_as_many_parameters_as_its_name_says(name, preset):
    wanted = float(name[:-1]) * {"M": 1e6, "B": 1e9}[name[-1]]
    assert preset.shape.num_parameters == pytest.approx(wanted, rel=0.1)
    model = Gpt(preset.shape, device="meta")
    assert sum(p.numel() for p in model.parameters()) == preset.shape.num_parameters


def test_a_token_is_predicted_from_those_before_it_alone():
    model, tokens = made(), torch.arange(16).view(1, 16)
    changed = tokens.clone()
    changed[0, 10] = 49
    before, after = model(tokens), model(changed)
    assert before.shape == (1, 16, 50)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10], after[:, 10])


def test_first_weights_follow_from_the_seed_alone():
    one, same, other = made(), made(), made(seed=1)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.tokens.weight, other.tokens.weight)


def test_first_weights_are_spread_as_those_of_gpt_2():
    shape = GptShape(layers=8, width=128, heads=4, context=64, vocabulary=256)
    block = made(shape).blocks[3]
    # the standard deviation of n draws is off by 1/sqrt(2 n): 0.6 % for 16,384
    assert float(block.attention_in.weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    for added in (block.attention_out, block.network_out):
        assert float(added.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.03)
        assert float(added.bias.detach().abs().max()) == 0.0
    assert float(block.network_norm.weight.detach().min()) == 1.0


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((2, 30, 4, 16, 50), "30 is not divisible by 4 heads"), ((0, 32, 4, 16, 50), "at least 1")],
)
def test_a_model_that_cannot_be_made_is_refused(sizes, words):
    with pytest.raises(SpecError, match=words):
        GptShape(*sizes)
