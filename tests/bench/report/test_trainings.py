"""The page about a training shows every series of its log, whatever was trained."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tersor.bench.report import build_report, read_runs
from tersor.bench.report.page import Page
from tersor.bench.sites import report_sections
from tersor.errors import CorruptDataError
from tests.bench.report.runs import ORIGIN, log_lines

SAVED: dict[str, Any] = {
    "original_nbytes": 4 << 20,
    "held_nbytes": 1 << 20,
    "forms": {
        "rms": {"num_tensors": 3, "original_nbytes": 4 << 20, "held_nbytes": 1 << 20},
        "parameters": {"num_tensors": 9, "original_nbytes": 64, "held_nbytes": 64},
    },
}


def steered_log() -> list[dict[str, Any]]:
    """Return the log of a training on images with a target score."""
    lines: list[dict[str, Any]] = [
        {"kind": "run", "step": 0, "command": "tersor train resnet34", **ORIGIN}
    ]
    for step in (10, 20, 30):
        values = {
            "loss": 3 - step / 20, "step_s": 0.1, "images_per_s": 100 + step, "activation_ratio": 8.0 + step,
            "activation_level": step / 20, "score": 0.96, "score_level": step / 25, "learning_rate": 0.1 - step / 400,
        }  # fmt: skip
        lines.append({"kind": "train", "step": step, **values})
        lines.append(
            {
                "kind": "eval",
                "step": step,
                "accuracy": 0.5 + step / 100,
                "loss": 2.0,
                "num_samples": 500,
            }
        )
        probed = {"score": 0.9 + step / 1000, "weighted": 0.9, "lowest": 0.5, "cosine": 0.92}
        levels = {"score_level": step / 20, "activation_level": step / 15}
        lines.append({"kind": "probe", "step": step, **probed, **levels})
    return [*lines, {"kind": "end", "step": 30, "activations": SAVED}]


def page_of(folder, lines: list[dict[str, Any]]) -> Page:
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return build_report(read_runs([str(folder)]), report_sections(), title="a training")


def words_of(svg: str) -> set[str | None]:
    return {text.text for text in ET.fromstring(svg).iter() if text.tag.endswith("text")}


@pytest.fixture
def steered(tmp_path) -> Page:
    return page_of(tmp_path / "run", steered_log())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("accuracy-on-the-test-samples", {"accuracy", "step"}),
        ("loss-on-the-test-samples", {"loss", "step"}),
        ("training-loss", {"loss", "step"}),
        ("learning-rate", {"learning rate", "step"}),
        ("ratio-of-saved-activations", {"ratio", "step"}),
        ("level-of-saved-activations", {"step or bound", "in use", "last scored", "probed"}),
        ("score-of-the-gradients", {"score", "last known", "probed"}),
        ("images-per-second", {"images per second"}),
    ],
)
def test_every_series_of_a_log_has_a_figure(steered, name, words) -> None:
    assert words <= words_of(steered.figures[f"run-{name}"].svg)


def test_figures_of_speed_are_folded_and_what_never_changes_has_none(steered) -> None:
    assert steered.figures["run-images-per-second"].is_folded
    assert not steered.figures["run-accuracy-on-the-test-samples"].is_folded
    # the same seconds per step, and the same number of samples, at every step
    assert not [name for name in steered.figures if "seconds" in name or "num-samples" in name]


def test_evaluations_probes_and_saved_bytes_stand_in_tables(steered) -> None:
    page = re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<svg.*?</svg>", "", steered.render()))
    words = " ".join(page.split())
    assert "accuracy 0.8000, loss 2.0000, saved activations 4.0 times smaller" in words
    assert "Evaluations" in words
    assert re.search(r"30 0\.8000 2\.0000 500", words)
    assert "Probes of the gradients" in words
    assert re.search(r"20 0\.9200 0\.9000 0\.5000 0\.9200 1\.0000 1\.3333", words)
    assert re.search(r"rms 3 4\.000 1\.000 4\.00", words)
    # memory that exists anyway
    assert "parameters" not in words


def test_a_training_without_compression_has_no_figure_of_it(tmp_path) -> None:
    page = page_of(tmp_path / "run", log_lines())
    assert not [name for name in page.figures if "activations" in name or "score" in name]


@pytest.mark.parametrize(
    "saved", [[], {}, {**SAVED, "forms": [1]}, {**SAVED, "forms": {"rms": {"held_nbytes": 1}}}]
)
def test_damaged_totals_of_saved_activations_are_refused(tmp_path, saved) -> None:
    lines = steered_log()
    lines[-1]["activations"] = saved
    with pytest.raises(CorruptDataError, match=r"line 11 .* activations"):
        page_of(tmp_path / "run", lines)


def test_strange_values_of_series_are_left_out(tmp_path) -> None:
    lines = steered_log()
    lines[1] |= {"learning_rate": "fast", "notes": ["a"], "images_per_s": float("nan")}
    assert page_of(tmp_path / "run", lines).render()
