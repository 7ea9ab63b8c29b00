"""A GPT trains the same on any number of ranks, resumes exactly, and learns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tersor.errors import SpecError
from tersor.workloads.data.synthetic_text import SyntheticText
from tersor.workloads.gpt import GptConfig, GptRun
from tersor.workloads.gpt.schemes import SCHEMES
from tersor.workloads.models.gpt import GptShape
from tersor.workloads.training.activations import ActivationOptions
from tersor.workloads.training.checkpoint import resume, save_checkpoint
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Schedule, train
from tests.checks import assert_bits_equal
from tests.sites.ranks import returned, run_ranks

SOURCE = SyntheticText(num_train=500, num_validation=20)
SHAPE = GptShape(layers=2, width=32, heads=2, context=16, vocabulary=256)


def config(**options: Any) -> GptConfig:
    values = {"shape": SHAPE, "batch": 8, "steps": 6, "learning_rate": 1e-2, **options}
    return GptConfig(**values)


def taken(run: GptRun, num_steps: int) -> GptRun:
    for _ in range(num_steps):
        run.step()
    return run


def facts_of(rank: int, options: dict[str, Any]) -> tuple[list[float], list[float], float]:
    """Train; return this rank's losses, the norms of its gradients, and the loss at the end."""
    run = GptRun(config(**options), SOURCE)
    losses, norms = [], []
    for _ in range(6):
        losses.append(run.step())
        norms.append(run.gradient_norm)
    return losses, norms, run.evaluate(7).loss


@pytest.mark.parametrize("accumulation", [1, 2])
def test_two_ranks_take_the_steps_of_one(accumulation):
    losses, norms, loss = facts_of(0, {})
    found = returned(run_ranks(facts_of, 2, {"accumulation": accumulation}))
    # float32 sums in another order, over six steps
    np.testing.assert_allclose(np.mean([one[0] for one in found], axis=0), losses, rtol=1e-4)
    np.testing.assert_allclose(found[0][1], norms, rtol=1e-3)
    assert [one[2] for one in found] == pytest.approx([loss] * 2, rel=1e-4)
    assert found[0][2] == found[1][2]


def test_a_batch_in_parts_takes_the_same_steps():
    whole, parts = facts_of(0, {}), facts_of(0, {"accumulation": 4})
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-4)
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_resumed_run_takes_the_same_steps(tmp_path, dtype):
    options = {"dtype": dtype, "accumulation": 2}
    whole = taken(GptRun(config(**options), SOURCE), 6)
    save_checkpoint(taken(GptRun(config(**options), SOURCE), 3), tmp_path)
    second = GptRun(config(**options), SOURCE)
    assert resume(second, tmp_path) == 3
    taken(second, 3)
    for name, value in whole.state().items():
        assert_bits_equal(second.state()[name], value)


def resumed_states(
    rank: int, folder: Path, options: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], ...]:
    """Return the state of a run of six steps, and of one that was stopped and resumed."""
    whole = taken(GptRun(config(**options), SOURCE), 6)
    save_checkpoint(taken(GptRun(config(**options), SOURCE), 3), folder)
    second = GptRun(config(**options), SOURCE)
    assert resume(second, folder) == 3
    return whole.state(), taken(second, 3).state()


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bf16", "activations": ActivationOptions(target_score=0.9)}]
)
def test_resumed_ranks_take_the_same_steps(tmp_path, options):
    for whole, again in returned(run_ranks(resumed_states, 2, tmp_path, options)):
        assert whole.keys() == again.keys()
        # each rank has a half, and saves no more
        assert whole["model/tokens.weight"].shape == (128, 32)
        assert whole["optimizer/0/exp_avg"].shape == (128, 32)
        for name, value in whole.items():
            assert_bits_equal(again[name], value)


def test_a_checkpoint_of_another_model_or_text_is_refused(tmp_path):
    save_checkpoint(taken(GptRun(config(), SOURCE), 1), tmp_path)
    with pytest.raises(SpecError, match="another accumulation; give the same options"):
        resume(GptRun(config(accumulation=2), SOURCE), tmp_path)
    with pytest.raises(SpecError, match="another data; give the same options"):
        resume(GptRun(config(), SyntheticText(num_train=501, num_validation=20)), tmp_path)


def test_a_longer_run_is_told_how_to_keep_its_learning_rate(tmp_path):
    save_checkpoint(taken(GptRun(config(), SOURCE), 2), tmp_path)
    with pytest.raises(SpecError, match=r"final at step 6, .* go on with --decay-steps 6"):
        resume(GptRun(config(steps=9), SOURCE), tmp_path)
    assert resume(GptRun(config(steps=9, decay_steps=6), SOURCE), tmp_path) == 2


def test_the_learning_rate_is_the_published_one():
    rate = config(steps=1000, learning_rate=6e-4).rate()
    assert rate.at(4) == pytest.approx(3e-4)
    assert rate.at(10) == pytest.approx(6e-4)
    assert rate.at(505) == pytest.approx(3.3e-4)
    assert rate.at(1000) == pytest.approx(6e-5)


def test_only_matrices_decay_and_gradients_are_shortened():
    run = taken(GptRun(config(), SOURCE), 1)
    decayed, others = run.optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert {p.dim() for p in decayed["params"]} == {2}
    assert {p.dim() for p in others["params"]} == {1}
    assert len(decayed["params"]) + len(others["params"]) == len(list(run.model.parameters()))
    assert run.gradient_norm > 1.0
    squares = [float(p.grad.square().sum()) for p in run.model.parameters()]
    # clip_grad_norm_ adds 1e-6 to what it divides by
    assert sum(squares) ** 0.5 == pytest.approx(1.0, rel=1e-4)


def test_a_gpt_learns_and_does_not_beat_the_best():
    run = GptRun(config(batch=16, steps=60), SOURCE)
    before = run.evaluate().loss
    after = taken(run, 60).evaluate()
    assert before == pytest.approx(np.log(256), rel=0.05)
    assert SOURCE.best_loss() < after.loss < 0.6 * before
    assert after.perplexity == pytest.approx(np.exp(after.loss))
    assert after.num_tokens == (len(SOURCE.tokens("validation")) - 1) // 16 * 16


def test_a_line_tells_loss_norm_and_speed():
    run = GptRun(config(steps=2), SOURCE)
    with RunLog(None) as log:
        train(run, Schedule(log_every=1), log)
    line = log.lines[0]
    names = {"loss", "step_s", "learning_rate", "gradient_norm", "tokens_per_s"}
    assert set(line) == {"kind", "step", *names}
    assert line["learning_rate"] == run.learning_rate.at(0)
    assert line["gradient_norm"] > 0
    assert line["tokens_per_s"] == round(8 * 16 / line["step_s"])


def states_of(
    rank: int, folder: Path, options: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], ...]:
    """Return the state of a run, and of one that was stopped and resumed."""
    run = taken(GptRun(config(**options), SOURCE), 3)
    save_checkpoint(run, folder)
    taken(run, 3)
    again = GptRun(config(**options), SOURCE)
    resume(again, folder)
    taken(again, 3)
    found = {name: x.clone() for name, x in run.state().items()}, again.state()
    run.close()
    again.close()
    return found


@pytest.mark.parametrize("scheme", ["both", "loco"])
@pytest.mark.parametrize("num_processes", [1, 4])
def test_compressed_runs_resume_bit_for_bit(tmp_path, scheme, num_processes):
    options = {"scheme": scheme, "ranks_per_node": 2, "ranks": 1 if num_processes > 1 else 4}
    if num_processes == 1:
        found = [states_of(0, tmp_path, options)]
    else:
        found = returned(run_ranks(states_of, num_processes, tmp_path, options))
    for whole, resumed in found:
        assert whole.keys() == resumed.keys()
        assert any(name.startswith("shards/") for name in whole)
        for name, value in whole.items():
            assert_bits_equal(value, resumed[name])


def test_ranks_in_one_process_take_the_steps_of_processes():
    options = {"scheme": "both", "ranks_per_node": 2}
    real = returned(run_ranks(facts_of, 4, options))
    losses, norms, loss = facts_of(0, {**options, "ranks": 4})
    # the norm of all gradients is summed in another order, and shortens them
    np.testing.assert_allclose(np.mean([one[0] for one in real], axis=0), losses, rtol=1e-3)
    np.testing.assert_allclose(real[0][1], norms, rtol=1e-2)
    assert real[0][2] == pytest.approx(loss, rel=1e-2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_trains(scheme):
    losses, _, _ = facts_of(0, {"scheme": scheme, "ranks": 4, "ranks_per_node": 2})
    assert losses[-1] < losses[0]


def left_by_a_peer(rank: int) -> None:
    run = taken(GptRun(config(), SOURCE), 1)
    if rank:
        os._exit(3)
    run.step()


def test_a_lost_peer_is_reported_in_one_sentence():
    failure = run_ranks(left_by_a_peer, 2)[0]
    assert failure.name == "ExchangeError"
    assert failure.message.startswith("rank 0 lost the others: one of them left, failed or timed")


def test_an_error_of_the_model_stays_what_it_is():
    run = GptRun(config(), SOURCE)
    with pytest.raises(RuntimeError, match="size") as caught:
        run.step(torch.zeros(8, 3, 3, dtype=torch.int64))
    assert caught.type is RuntimeError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulation": 3}, "8 sequences of a batch cannot be computed in 3 equal parts"),
        ({"shape": GptShape(1, 8, 1, 16, 255)}, "255 tokens, too few for the 256 of synthetic"),
        ({"shape": GptShape(1, 8, 1, 4096, 256)}, "a sequence takes 4097; give a longer"),
        ({"dtype": "fp16"}, "dtype must be one of fp32, bf16, not 'fp16'"),
        ({"accumulation": 0}, "at least one part"),
        ({"scheme": "4bit"}, "scheme must be one of exact, direct"),
        ({"ranks": 6, "ranks_per_node": 4}, "6 ranks cannot be nodes of 4 each"),
        ({"ranks": 3}, "a batch of 8 cannot be shared by 3 ranks; choose a multiple of them"),
        ({"ranks": 0}, "there must be at least one rank, not 0"),
        ({"scheme": "both"}, "one rank exchanges nothing that both could compress; start several"),
        ({"ranks_per_node": 2}, "1 ranks cannot be nodes of 2 each"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, words):
    with pytest.raises(SpecError, match=words):
        GptRun(config(**options), SOURCE)


def refused_nodes(rank: int) -> None:
    GptRun(config(ranks_per_node=3), SOURCE)


def test_processes_that_are_no_whole_nodes_are_refused() -> None:
    for failure in run_ranks(refused_nodes, 2):
        assert failure.name == "SpecError"
        assert failure.message.startswith("2 ranks cannot be nodes of 3 each; give a number")


ACTIVATIONS: list[dict[str, Any]] = [
    {"accumulation": 2},
    {"dtype": "bf16"},
    {"scheme": "both", "ranks_per_node": 1},
]


def facts_with_activations(rank: int) -> list[dict[str, Any]]:
    """Train with each of ``ACTIVATIONS`` without compressed activations, with exact and with lossy ones."""
    found = []
    for options in ACTIVATIONS:
        found.append({"exact": facts_of(rank, options)})
        for codec in ("raw", "rms"):
            activations = ActivationOptions(codec=codec)
            found[-1][codec] = facts_of(rank, {**options, "activations": activations})
    return found


def test_activations_of_ranks_in_one_process_on_a_gpu_are_refused() -> None:
    options = {"ranks": 2, "activations": ActivationOptions()}
    with pytest.raises(SpecError, match=r"one CUDA graph, .*; start processes with torchrun"):
        GptRun(config(**options), SOURCE, "cuda")


def test_activations_of_a_sharded_model_are_compressed() -> None:
    for settings in returned(run_ranks(facts_with_activations, 2)):
        for one in settings:
            assert one["raw"] == one["exact"]
            assert one["rms"] != one["exact"]
            # as far from the start as exact ones come, within a tenth
            assert one["rms"][2] == pytest.approx(one["exact"][2], rel=0.1)
            assert one["rms"][0][-1] < one["rms"][0][0]


@pytest.mark.gpu
def test_captured_gradients_are_those_of_an_eager_pass() -> None:
    options: dict[str, Any] = {"ranks": 4, "ranks_per_node": 2, "scheme": "both", "dtype": "bf16"}
    captured = GptRun(config(**options), SOURCE, "cuda")
    eager = GptRun(config(**options), SOURCE, "cuda")
    eager._gradients_of = eager._add_gradients  # type: ignore[method-assign]
    assert [captured.step() for _ in range(6)] == [eager.step() for _ in range(6)]
    for one, other in zip(captured.trained(), eager.trained(), strict=True):
        assert_bits_equal(one.detach().cpu(), other.detach().cpu())


@pytest.mark.gpu
def test_a_run_with_a_fused_optimizer_resumes_bit_for_bit() -> None:
    options: dict[str, Any] = {"ranks": 4, "ranks_per_node": 2, "scheme": "both"}
    first = taken(GptRun(config(**options), SOURCE, "cuda"), 3)
    second = GptRun(config(**options), SOURCE, "cuda")
    second.load_state({name: x.cpu() for name, x in first.state().items()})
    assert [first.step() for _ in range(3)] == [second.step() for _ in range(3)]
