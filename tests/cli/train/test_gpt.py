from __future__ import annotations

import json

import pytest

SMALL = ("--preset", "2M", "--context", "16", "--batch", "2", "--eval-samples", "4", "--steps", "4")


def test_a_run_reports_what_it_learned(tersor, tmp_path) -> None:
    done = tersor.ok("train", "gpt", "--json", *SMALL, "--run-dir", "run", "--log-every", "1").json
    assert 0 < done["metrics"]["loss"] < 6
    assert done["metrics"]["num_tokens"] == 4 * 16
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["run", *["train"] * 4, "eval", "end"]
    assert lines[0]["config"]["shape"]["vocabulary"] == 256
    assert all(line["gradient_norm"] > 0 and line["tokens_per_s"] > 0 for line in lines[1:5])


def test_people_see_a_table_the_loss_and_the_best_one(tersor) -> None:
    done = tersor.ok("train", "gpt", *SMALL, "--log-every", "2")
    for words in ("perplexity", "parameters", "best loss of any model"):
        assert words in done.out
    for words in ("step 2 of 4: loss ", "gradient_norm", "tokens_per_s", "ms per step"):
        assert words in done.err


def test_a_run_goes_on_from_its_checkpoint(tersor, tmp_path) -> None:
    options = ("train", "gpt", *SMALL, "--run-dir", "run", "--checkpoint-every", "2")
    first = tersor.ok(*options, "--json").json
    again = tersor.ok(*options, "--json", "--resume")
    assert "resumed at step 4; nothing is left to train" in again.err
    assert again.json == first
    assert "another dtype" in tersor.refused(*options, "--resume", "--dtype", "bf16")
    longer = (*options, "--resume", "--steps", "6")
    assert "final at step 4" in tersor.refused(*longer)
    assert "resumed at step 4" in tersor.ok(*longer, "--decay-steps", "4").err


def test_a_text_of_ones_own_is_trained_on(tersor, tmp_path) -> None:
    (tmp_path / "tale.txt").write_text("once upon a time\n" * 200)
    (tmp_path / "end.txt").write_text("happily ever after\n" * 20)
    texts = ("--data", "tale.txt", "--validation", "end.txt", "--cache", "kept")
    done = tersor.ok("train", "gpt", *SMALL, *texts)
    assert "GPT on tale.txt, bytes" in done.out
    assert "best loss" not in done.out
    assert [path.name.split("-")[0] for path in (tmp_path / "kept").iterdir()] == ["tale.txt.bytes"]


def test_bpe_tokens_are_learned_from_the_text(tersor, tmp_path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tale.txt").write_text("once upon a time\n" * 4000)
    tokens = ("--data", "tale.txt", "--tokenizer", "bpe", "--vocabulary", "260")
    tersor.ok("train", "gpt", *SMALL, *tokens, "--run-dir", "run")
    first = json.loads((tmp_path / "run/log.jsonl").read_text().splitlines()[0])
    assert first["config"]["shape"]["vocabulary"] == 260


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--preset", "3M"), "--preset must be one of 2M, 10M, "),
        (("--data", "nowhere.txt"), "there is no file nowhere.txt; name a text"),
        (("--steps", "0"), "--steps must be at least 1"),
        (("--decay-steps", "0"), "--decay-steps must be at least 1"),
        (("--dtype", "fp8"), "dtype must be one of fp32, bf16, not 'fp8'"),
        (("--context", "0"), "every size of a GPT must be at least 1"),
        (("--accumulation", "3"), "2 sequences of a batch cannot be computed in 3 equal parts"),
        (("--tokenizer", "bpe"), "the synthetic text has bytes"),
        (("--eval-samples", "0"), "an evaluation needs at least one sample, not 0"),
        (("--resume",), "need --run-dir DIR"),
    ],
)
def test_a_mistake_is_one_sentence(tersor, options, words) -> None:
    assert words in tersor.refused("train", "gpt", *SMALL, *options)


def test_a_text_that_is_too_short_is_refused(tersor, tmp_path) -> None:
    (tmp_path / "tale.txt").write_text("once upon a time\n" * 10)
    done = tersor("train", "gpt", *SMALL, "--data", "tale.txt", "--context", "40")
    assert done.code == 2
    assert "validation text has" in done.err
    assert "a sequence takes 41; give a longer text, or a shorter --context" in done.err
