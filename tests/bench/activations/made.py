"""Rows of steps and trainings that nobody made."""

from __future__ import annotations

from typing import Any

from tersor.bench.activations.accuracy import SUITE as ACCURACY
from tersor.bench.core.activation_facts import ActivationFacts, SavedBytes
from tersor.bench.core.blocks import Estimate, Memory, Quality
from tersor.bench.core.rows import ActivationRow, ResultRow, TrainingRow
from tersor.bench.core.timing import Percentiles
from tersor.bench.core.training_facts import TrainingFacts
from tests.bench.core.test_rows import make_row


def _values(row: ResultRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def saved(ratio: float, floats_ratio: float) -> SavedBytes:
    """Return a step that saved 2000 bytes, 1600 of them floats."""
    held, floats = round(2000 / ratio), round(1600 / floats_ratio)
    return SavedBytes(
        nbytes=2000, floats_nbytes=1600, held_nbytes=max(held, floats), held_floats_nbytes=floats
    )


def step_row(
    name: str, ratio: float, peak_mib: float, step_s: float, score: float = 1.0, **changes: Any
) -> ActivationRow:
    """Return a step of ResNet34 at 224 pixels on a GPU."""
    facts = {"batch": 256, "dtype": "fp32", "warm_steps": 20, "cosine": score, "least_score": score}
    facts |= {"saved": saved(ratio, ratio), "step_s": Percentiles(step_s, step_s, step_s)}
    facts |= {"is_exact": score == 1.0}
    facts |= {key: changes.pop(key) for key in list(changes) if key in facts}
    plain = make_row(
        suite="activations", codec=name, spec={}, input=changes.pop("input", "resnet34-224"),
        device=changes.pop("device", "cuda"), group="batch 256, fp32, 20 steps before",
        peer=name in ("exact", "checkpoint", "compiled", "budget-0"), original_nbytes=2000,
        encoded_nbytes=round(2000 / ratio), worst_error=None, error_bound=None,
        quality=Quality(score=Estimate(mean=score)),
        memory=Memory(held_nbytes=2**20, peak_nbytes=round(peak_mib * 2**20)),
    )  # fmt: skip
    return ActivationRow(**{**_values(plain), "activations": ActivationFacts(**facts), **changes})


def step_rows() -> list[ActivationRow]:
    return [
        step_row("exact", 1.0, 60.0, 0.100),
        step_row("lossless", 1.0, 61.0, 0.101),
        step_row("rms-1", 16.0, 10.0, 0.110, 0.975),
        step_row("group2", 20.0, 5.0, 0.105, 0.5),
        step_row("checkpoint", 5.0, 20.0, 0.130),
        step_row("compiled", 1.1, 50.0, 0.080, 0.999),
        step_row("budget-0", 8.0, 25.0, 0.100, 0.999),
    ]


def training_row(
    setting: str, seed: int, loss: float, accuracy: float | None = None, **changes: Any
) -> TrainingRow:
    """Return a training of AlexNet; ours hold an eleventh of all bytes and a sixteenth of the floats."""
    facts = {
        "data": "images", "seed": seed, "steps": 300, "batch": 128, "num_ranks": 1, "ranks_per_node": 1,
        "curve": [(150, 2 * loss), (300, loss)], "step_s": 0.5,
        "saved": None if setting == "exact" else saved(11.0, 16.0),
    }  # fmt: skip
    facts |= {name: changes.pop(name) for name in list(changes) if name in facts}
    score = changes.pop("score", None if setting == "exact" else 0.96)
    plain = make_row(
        suite=ACCURACY, codec=setting, spec=changes.pop("spec", {}), group=f"seed {seed}",
        input=changes.pop("input", "alexnet"), original_nbytes=2000, encoded_nbytes=200,
        quality=Quality(
            loss=Estimate(mean=loss),
            accuracy=None if accuracy is None else Estimate(mean=accuracy),
            score=None if score is None else Estimate(mean=score),
        ),
    )  # fmt: skip
    return TrainingRow(**{**_values(plain), "training": TrainingFacts(**facts), **changes})


def training_rows(setting: str = "rms-1", points: float = -0.2) -> list[TrainingRow]:
    """Return three seeds of exact trainings and of a setting whose accuracy is ``points`` higher."""
    found = []
    for seed, accuracy in enumerate((0.76, 0.77, 0.75)):
        found += [
            training_row("exact", seed, 0.7, accuracy),
            training_row(setting, seed, 0.71, accuracy + points / 100),
        ]
    return found
