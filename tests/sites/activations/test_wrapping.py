"""A wrapped module compresses its own forward passes, by rules for its parts."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest
import torch
from torch import nn

from tersor import Bound, SpecError, create
from tersor.sites import activations
from tersor.sites.activations.window import EncodingWindows
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


class _Interrupted(nn.Module):
    """A part that raises its error, if it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return x


ERRORS = [KeyboardInterrupt, GeneratorExit, SystemExit, ValueError]


@pytest.mark.parametrize("error", ERRORS)
def test_nothing_is_left_open_whatever_passes(error) -> None:
    part = _Interrupted()
    model, x = nn.Sequential(nn.Linear(64, 64), part, nn.Linear(64, 64)), torch.randn(256, 64)
    compression = activations.wrap(model, {"0": 0.5, "1": None}, step=1.0)
    expected = gradients(model, model, x)
    part.error = error()
    with pytest.raises(error):
        model(x)
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    part.error = None
    # the pass that was interrupted is the second one
    assert all_equal(gradients(model, model, x), expected)
    assert compression.report().num_steps == 3


class _Catches(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.last = part, nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.part(x)
        except BaseException:  # noqa: BLE001 - whatever the test raises
            return self.last(torch.relu(self.last(x)))
        raise AssertionError


@pytest.mark.parametrize("error", ERRORS)
def test_a_rule_ends_with_its_part_whatever_passes(error) -> None:
    part = _Interrupted()
    part.error = error()
    model = _Catches(part)
    compression = activations.wrap(model, {"part": None}, step=1.0)
    model(torch.randn(256, 64)).sum().backward()
    assert "rms" in compression.report().forms
    assert "exact: rule" not in compression.report().forms


def test_replicas_of_data_parallel_run_their_own_parameters() -> None:
    model, x = nn.Linear(64, 64), torch.randn(256, 64)
    compression = activations.wrap(model, {"": 0.5}, step=1.0)
    replica = model._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(64, 64, requires_grad=True), None
    out = replica(torch.relu(x))
    assert not out.any()
    assert compression.report().num_steps == 1
    assert model(x).any()


def test_a_wrapped_module_is_called_as_before() -> None:
    model, x = Transformer(), tokens()
    expected, signature = model(x), inspect.signature(model.forward)
    activations.wrap(model, {"": None, "norm": 0.5}, step=1.0)
    assert inspect.signature(model.forward) == signature
    assert torch.equal(model.forward(x), expected)
    # one that is replaced afterwards stays
    other = model.forward
    model.forward = lambda x: other(x) + 1
    assert torch.equal(model(x), expected + 1)
    compression = activations.unwrap(model)
    before = compression.report().num_steps
    assert torch.equal(model(x), expected + 1)
    assert compression.report().num_steps == before


def test_a_wrapped_module_is_exported_as_before() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(256, 64)
    activations.wrap(model, {"0": 0.5}, step=1.0)
    exported = torch.export.export(model, (x,))
    assert torch.equal(exported.module()(x), model(x))


def test_a_replaced_forward_is_kept() -> None:
    model, x = nn.Linear(64, 64), torch.randn(256, 64)
    model.forward = replaced = lambda x: x * 2
    compression = activations.wrap(model, {"": None}, step=1.0)
    assert torch.equal(model(x), x * 2)
    assert activations.unwrap(model) is compression
    assert model.forward is replaced
    del model.forward
    activations.wrap(model, {"": None}, compression)
    activations.unwrap(model)
    assert "forward" not in vars(model)
    assert not model._forward_pre_hooks


def test_a_wrapped_module_is_freed_with_its_last_reference() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    activations.wrap(model, {"0": None}, step=1.0)
    model(torch.randn(256, 64)).sum().backward()
    alive = weakref.ref(model[0].weight)
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()


def test_a_hook_that_raises_does_not_keep_a_wrapped_module_alive() -> None:
    def refuse(*_given: object) -> None:
        raise ValueError("no")

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    activations.wrap(model, step=1.0)
    model.register_forward_pre_hook(refuse)
    alive = weakref.ref(model[0].weight)
    gc.collect()
    gc.disable()
    try:
        with suppress(ValueError):
            model(torch.randn(256, 64))
        del model
        assert alive() is None
    finally:
        gc.enable()


def test_an_interrupt_while_the_rest_is_encoded_leaves_nothing_to_the_garbage_collector(
    monkeypatch,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EncodingWindows, "flush", interrupted)
    compression = activations.compressed(step=0.5)
    gc.collect()
    gc.disable()
    try:
        try:
            with compression:
                torch.tanh(torch.randn(64, 64, requires_grad=True) * 1.0)
                region = weakref.ref(compression._regions()[0])
        except KeyboardInterrupt:
            pass
        assert region() is None
    finally:
        gc.enable()
