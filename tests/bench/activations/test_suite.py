"""Steps with several methods of holding what backward needs: checked, counted, timed."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from torch.nn import functional

from tersor.bench.activations import contenders, memory_child, suite
from tersor.bench.activations.case import Case
from tersor.bench.activations.cases import MODELS, CasePlan
from tersor.bench.activations.contenders import DEFAULT, make_contender
from tersor.bench.activations.counting import counting_saved
from tersor.bench.activations.measuring import are_equal, counted, exact_gradients
from tersor.bench.activations.suite import ActivationsConfig, run_activations
from tersor.bench.core.rows import ActivationRow
from tersor.errors import SpecError
from tests.bench.simulated_device import SimulatedDevice

PLAN = CasePlan(model="resnet34", batch=2, is_smoke=True)
GPT = CasePlan(model="gpt-2M", batch=2, is_smoke=True)


@pytest.fixture
def no_children(monkeypatch):
    """Let steps not be measured in processes of their own, each of which takes seconds to start."""
    asked = []

    def report(module, arguments, failed, environment):
        asked.append((json.loads(arguments[0]), arguments[1], environment))
        return {"held_nbytes": 1000, "peak_nbytes": 2000}

    monkeypatch.setattr(suite, "child_report", report)
    return asked


def planned(*names: str, plan: CasePlan = PLAN) -> ActivationsConfig:
    return ActivationsConfig(cases=(plan,), contenders=names, rounds=1)


def test_every_way_has_a_row_with_bytes_times_and_gradients(no_children):
    outcome = run_activations(planned("rms-1", "group4", "checkpoint"))
    rows = {row.codec: row for row in outcome.rows if isinstance(row, ActivationRow)}
    assert list(rows) == ["exact", "lossless", "rms-1", "group4", "checkpoint"]
    assert (outcome.refusals, outcome.notes) == ([], [])
    for name in ("exact", "lossless", "checkpoint"):
        assert rows[name].activations.is_exact
    for name in ("rms-1", "group4"):
        facts = rows[name].activations
        assert not facts.is_exact
        assert facts.saved.ratio > 4
        assert 0.5 < facts.cosine < 1
        assert rows[name].quality.score.mean < 1
    # two blocks and what is before and after them, of about eight tensors each
    assert rows["checkpoint"].activations.saved.ratio > 2
    assert rows["exact"].ratio == 1.0
    assert [(plan["model"], name) for plan, name, _ in no_children] == [
        ("resnet34", name) for name in rows
    ]
    assert all("MALLOC_MMAP_THRESHOLD_" in environment for *_, environment in no_children)
    assert rows["rms-1"].memory.peak_nbytes == 2000


def test_a_step_on_a_gpu_is_timed_as_one_of_several_in_a_row(monkeypatch):
    device = SimulatedDevice().patch(monkeypatch)
    is_first = True

    def step():
        nonlocal is_first
        # behind another contender the host is slower, and a training's host queues ahead of the device
        device.launch(host_s=0.3 if is_first else 0.06, device_s=0.1)
        is_first = False

    seconds = suite._clock(torch.device("cuda")).seconds(step)
    assert seconds == pytest.approx(0.1 + 0.06 / suite._STEPS_PER_LOOP)


def test_rows_that_are_there_are_not_made_again(no_children):
    first = run_activations(planned("group4")).rows
    keys = frozenset(row.key for row in first)
    assert run_activations(planned("group4"), done=keys).rows == []
    again = run_activations(planned("group4", "group8"), done=keys).rows
    assert [row.codec for row in again] == ["group8"]


@pytest.mark.parametrize("plan", [PLAN, GPT], ids=["resnet34", "gpt"])
def test_a_lossless_codec_that_changes_a_gradient_is_refused_before_anything_is_measured(
    plan, no_children, monkeypatch
):
    faulty = contenders._ours("lossless", codec="group8")
    monkeypatch.setitem(contenders._BY_NAME, "lossless", faulty)
    outcome = run_activations(planned("group4", plan=plan))
    assert outcome.rows == []
    assert no_children == []
    assert outcome.refusals == [f"{plan.name} is refused: a lossless codec changes its gradients"]


def test_what_torch_cannot_run_is_one_sentence(no_children, monkeypatch):
    def fail(case):
        def forward(*batch):
            raise RuntimeError("no compiler\nand much more")

        return forward

    monkeypatch.setitem(contenders._BY_NAME, "compiled", contenders._theirs("compiled", fail))
    outcome = run_activations(planned("compiled", "save-on-cpu"))
    assert [row.codec for row in outcome.rows] == ["exact", "lossless"]
    assert outcome.notes == [
        "save-on-cpu is left out: what a CPU saves is in its memory already",
        "compiled on resnet34-smoke is left out: no compiler",
    ]
    assert outcome.refusals == []


def test_an_error_of_ours_is_not_hidden(no_children, monkeypatch):
    def attach(case):
        def forward(*batch):
            raise RuntimeError("broken")

        return contenders.Attached(forward)

    broken = contenders.Contender("group4", attach, is_ours=True)
    monkeypatch.setitem(contenders._BY_NAME, "group4", broken)
    with pytest.raises(RuntimeError, match="broken"):
        run_activations(planned("group4"))


def test_a_step_in_a_process_of_its_own_says_what_it_holds(capsys):
    # the process of this test stands in for it
    plan = CasePlan(model="gpt-2M", batch=2, is_smoke=True)
    assert memory_child.main([json.dumps(asdict(plan)), "checkpoint"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"held_nbytes", "peak_nbytes"}
    assert found["peak_nbytes"] >= 0


def tiny(model: torch.nn.Module, x: torch.Tensor) -> Case:
    return Case("tiny", model, (x,), (x,), torch.Tensor.sum, [])


def test_saved_tensors_are_counted_once_without_parameters_and_batch():
    layer = torch.nn.Linear(8, 16)
    x = torch.randn(4, 8)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # the output of relu is saved by relu and by the product, which saves it twice
            hidden = functional.relu(self.layer(x))
            return hidden * hidden

    assert counted(tiny(Model(), x), Model()) == (4 * 16 * 4, 4 * 16 * 4)


def test_indices_are_no_floats_and_what_is_gone_does_not_count():
    x = torch.randn(2, 1, 4, 4, requires_grad=True)
    pool = torch.nn.MaxPool2d(2, return_indices=True)
    with counting_saved(pool, (x,)) as count:
        out, _ = pool(x * 2)
    # the input of the pooling, float32, and eight int64
    assert (count.floats_nbytes, count.nbytes) == (2 * 16 * 4, 2 * 16 * 4 + 8 * 8)
    del out, _
    assert count.nbytes == 0


def test_steps_repeat_bit_for_bit_also_with_dropout():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)
    )
    case = tiny(model, torch.randn(4, 8))
    first = exact_gradients(case, case.model)
    assert are_equal(first, exact_gradients(case, case.model))
    other = [g.clone() for g in first]
    other[0].view(-1)[0] += 1
    assert not are_equal(first, other)
    # equal numbers may differ in bits
    assert not are_equal([torch.zeros(2)], [-torch.zeros(2)])
    assert are_equal([torch.full((2,), torch.nan)], [torch.full((2,), torch.nan)])


def test_the_model_is_as_it_was_after_a_step_that_recomputes():
    case = GPT.make()
    before = [block.forward for block in case.blocks]
    exact_gradients(case, make_contender("checkpoint").attached(case).forward)
    assert [block.forward for block in case.blocks] == before


def test_a_target_is_steered_to_before_anything_is_measured(no_children):
    rows = {
        row.codec: row for row in run_activations(planned("score-0.9", "rms-0.5", plan=GPT)).rows
    }
    # a controller begins at a step of 0.5, whose score is far above this target
    assert 0.85 < rows["score-0.9"].quality.score.mean < rows["rms-0.5"].quality.score.mean
    assert rows["score-0.9"].ratio > rows["rms-0.5"].ratio


def test_names_with_numbers_are_contenders():
    assert make_contender("rms-0.25").options == {"step": 0.25}
    assert make_contender("ans-0.03").options == {"bound": {"relative": 0.03}, "codec": "ans"}
    assert make_contender("budget-0").baseline == "compiled"
    assert [make_contender(name).name for name in DEFAULT] == list(DEFAULT)


def test_a_graph_is_one_batch():
    assert CasePlan(model="gcn", batch=7).batch == 1
    assert CasePlan(model="resnet34-224", device="cuda").batch == 256


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: make_contender("zip"), "there is no 'zip'; choose from exact"),
        (lambda: make_contender("rms-fine"), "such as rms-0.5"),
        (lambda: CasePlan(model="vgg"), f"models are {', '.join(MODELS)}"),
        (lambda: CasePlan(model="gpt-2M", dtype="fp8"), "dtype must be one of fp32, bf16"),
        (lambda: CasePlan(model="gpt-2M", batch=-1), "cannot be below 0"),
        (lambda: ActivationsConfig(cases=()), "at least one model"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong, words):
    with pytest.raises(SpecError, match=words):
        wrong()
