"""A wrapped module compresses its own forward passes, by rules for its parts."""

from __future__ import annotations

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn

from tersor import Bound, SpecError, create
from tersor.sites import activations
from tests.sites.activations.models import Transformer, all_equal, cnn, gradients, images, tokens


def test_a_wrapped_module_gives_the_gradients_of_the_context() -> None:
    model, x = cnn(), images()
    options = {"bound": Bound.relative(0.02)}
    expected = gradients(model, model, x, activations.compressed(**options))
    compression = activations.wrap(model, **options)
    assert all_equal(expected, gradients(model, model, x))
    assert compression.report().num_steps == 1
    activations.unwrap(model)
    assert not all_equal(expected, gradients(model, model, x))
    assert compression.report().num_steps == 1


def test_a_wrapped_module_returns_what_it_returned_and_has_the_same_state() -> None:
    model, x = Transformer(), tokens()
    exact, state = model(x), list(model.state_dict())
    activations.wrap(model, codec="group4")
    assert torch.equal(model(x), exact)
    assert list(model.state_dict()) == state


def test_rules_by_name_and_type_say_how_parts_are_saved() -> None:
    model, x = Transformer(), tokens()
    rules = {"blocks.0": None, nn.LayerNorm: create("group8"), "blocks.1*": 0.5}
    compression = activations.wrap(model, rules, bound=Bound.relative(0.05))
    out = model(x)
    forms = compression.report().forms
    assert forms["exact: rule"].num_tensors > 5
    # one norm is in the exact block, inside of which its own rule counts
    assert forms["group8"].num_tensors >= 3
    assert forms["ans"].num_tensors > 5
    out.sum().backward()


def test_a_factor_makes_a_part_finer() -> None:
    errors = []
    for factor in (1.0, 0.1):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        x = torch.randn(256, 64)
        exact = gradients(model, model, x)
        activations.wrap(model, {"*": factor}, bound=Bound.relative(0.1))
        lossy = gradients(model, model, x)
        errors.append(float((lossy[0] - exact[0]).norm()))
    assert errors[1] < 0.3 * errors[0]


def test_an_error_inside_leaves_no_context_open() -> None:
    model = cnn()
    activations.wrap(model, {"0": 0.5}, codec="ans")
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 5, 16, 16))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    gradients(model, model, images())


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"no such part": None}, "no part"),
        ({"0": "fine"}, "a rule is"),
        ({"0": -1.0}, "a rule is"),
        ({nn.LSTM: None}, "no part"),
        ({7: None}, "a rule is"),
    ],
)
def test_rules_that_fit_nothing_or_mean_nothing_are_refused(rules, message) -> None:
    model = cnn()
    with pytest.raises(SpecError, match=message):
        activations.wrap(model, rules, codec="group4")
    # nothing is half wrapped
    with pytest.raises(SpecError, match="not wrapped"):
        activations.unwrap(model)


def test_wrapping_twice_or_with_two_compressions_is_refused() -> None:
    model = cnn()
    compression = activations.wrap(model, codec="group4")
    with pytest.raises(SpecError, match="already"):
        activations.wrap(model, codec="group4")
    with pytest.raises(SpecError, match="not both"):
        activations.wrap(cnn(), None, compression, codec="group4")


def test_several_modules_may_share_a_compression() -> None:
    compression = activations.compressed("group4")
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    activations.wrap(first, None, compression)
    activations.wrap(second, None, compression)
    out = second(torch.relu(first(torch.randn(64, 64))))
    assert compression.report().num_steps == 2
    out.sum().backward()


def _saved_and_loaded(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, _saved_and_loaded])
def test_a_copy_of_a_wrapped_module_is_wrapped_with_a_compression_of_its_own(copied) -> None:
    model, x = cnn(), images()
    rules = {"3": None, "4": None, nn.Linear: create("group8"), "1": 0.5}
    compression = activations.wrap(model, rules, bound=Bound.relative(0.02))
    expected = gradients(model, model, x)
    twin = copied(model)
    assert compression.report().num_steps == 1
    assert all_equal(expected, gradients(twin, twin, x))
    assert compression.report().num_steps == 1
    own = activations.unwrap(twin)
    # it goes on from where the first was
    assert own.report().num_steps == 2
    assert own.report().forms == compression.report().forms
    assert {"exact: rule", "group8", "ans"} <= own.report().forms.keys()
    assert not all_equal(expected, gradients(twin, twin, x))
    assert all_equal(expected, gradients(model, model, x))


def test_a_copy_of_a_compression_has_its_options_and_its_level() -> None:
    first = activations.compressed(target_score=0.9, every=1, window_nbytes=1 << 20)
    first.load_state_dict({**first.state_dict(), "level": 0.7, "num_steps": 3})
    for second in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert second.state_dict() == first.state_dict()
        assert second.report().level == 0.7


def test_a_copy_leaves_the_original_as_it_was() -> None:
    model, x = cnn(), images()
    compression = activations.wrap(model, target_score=0.9, every=1)
    out = model(x)
    # backward, which says how good the step was, is still to come
    copy.deepcopy(model)
    out.square().mean().backward()
    model(x)
    assert compression.report().similarity is not None


def test_a_part_of_a_wrapped_module_may_be_copied_alone() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), torch.randn(64, 64)
    activations.wrap(model, {"1": None}, codec="group4")
    part = copy.deepcopy(model[1])
    assert torch.equal(part(x), model[1](x))


class _Meeting(nn.Module):
    """A part whose forward passes call ``meet`` with their input before they save anything."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.meet = lambda x: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.meet(x)
        return self.layer(torch.tanh(x))


def _own_gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return gradients without ``grad`` of parameters, which threads share."""
    return list(torch.autograd.grad(model(x).square().mean(), list(model.parameters())))


def test_a_rule_holds_in_each_of_two_threads() -> None:
    model = nn.Sequential(nn.Linear(64, 64), _Meeting())
    first, second = torch.randn(256, 64), torch.randn(512, 64)
    expected = [_own_gradients(model, x) for x in (first, second)]
    first_is_inside, second_is_inside, first_is_over = Event(), Event(), Event()

    def meet(x: torch.Tensor) -> None:
        is_first = len(x) == len(first)
        (first_is_inside if is_first else second_is_inside).set()
        assert (second_is_inside if is_first else first_is_over).wait(10)

    def run_first() -> list[torch.Tensor]:
        try:
            return _own_gradients(model, first)
        finally:
            first_is_over.set()

    def run_second() -> list[torch.Tensor]:
        assert first_is_inside.wait(10)
        return _own_gradients(model, second)

    activations.wrap(model, {"1": None}, step=2.0)
    model[1].meet = meet
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(run) for run in (run_first, run_second)]
    assert all_equal(runs[0].result(), expected[0])
    assert all_equal(runs[1].result(), expected[1])
