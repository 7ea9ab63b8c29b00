"""Result files and run folders in small, as the benchmarks and trainings write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.lookup_facts import LookupFacts
from tersor.bench.core.rows import ExchangeRow, LookupRow, ResultRow
from tersor.bench.core.timing import Percentiles

ORIGIN: dict[str, Any] = {
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "machine": {"cpu": "Some CPU", "cores": 2, "memory_gib": 8.0},
    "git_commit": "0123456789ab",
}


def seconds(value: float) -> Percentiles:
    return Percentiles(value, value, value)


def kernel_row(codec: str, **changes: Any) -> ResultRow:
    bound = changes.pop("bound", 0.03)
    values: dict[str, Any] = {
        "suite": "kernels",
        "codec": codec,
        "version": "1",
        "spec": {} if bound is None else {"bound": {"relative": bound}},
        "input": "embeddings",
        "device": "cpu",
        "num_values": 1 << 20,
        "original_nbytes": 4 << 20,
        "encoded_nbytes": 1 << 19,
        "worst_error": 0.9,
        "error_bound": None if bound is None else 1.0,
        "encode_s": seconds(0.002),
        "decode_s": seconds(0.001),
        "memcpy_s": seconds(0.0005),
        **ORIGIN,
    }
    kinds = {"exchange": ExchangeRow, "lookups": LookupRow}
    kind = next((kinds[name] for name in changes if name in kinds), ResultRow)
    return kind(**{**values, **changes})


def kernel_rows() -> list[ResultRow]:
    return [
        kernel_row(codec, bound=bound, peer=peer, encoded_nbytes=int(size / bound**0.5))
        for bound in (0.01, 0.03, 0.05)
        for codec, peer, size in (
            ("rows", False, 20_000),
            ("flat", False, 90_000),
            ("zstd", True, 30_000),
        )
    ] + [kernel_row("group8", bound=None), kernel_row("huffman-codes", memcpy_s=None)]


def exchange_row(codec: str, direction: str, link: str | None, step_s: float) -> ResultRow:
    times = ExchangeTimes(
        direction=direction, network="namespaces", link=link, num_ranks=4, batch=2048,
        sizes_s=seconds(0.001), payload_s=seconds(0.01), exchange_s=seconds(step_s / 2),
        step_s=seconds(step_s),
    )  # fmt: skip
    return kernel_row(
        codec, bound=None, suite="embeddings", input="dlrm-small", exchange=times,
        group=f"{direction}, 4 ranks, {link}", memcpy_s=None,
    )  # fmt: skip


def exchange_rows() -> list[ResultRow]:
    return [
        exchange_row(codec, direction, link, step_s)
        for link, plain_s in (("100mbit", 0.8), ("1gbit", 0.2))
        for codec, step_s in (("float32", plain_s), ("rows", 0.1), ("half", plain_s / 2))
        for direction in ("forward", "backward")
    ]


def pair(seed: int, change: float = -0.0005) -> dict[str, Any]:
    def one(shift: float, ratio: float) -> dict[str, Any]:
        return {
            "metrics": {"auc": 0.77 + shift, "logloss": 0.46 - shift},
            "curve": [[10, 0.7 + shift, 0.5], [20, 0.77 + shift, 0.46]],
            "forward_ratio": ratio,
            "backward_ratio": 2.0,
            "tables": {"0": [1000, int(1000 / ratio)], "1": [2000, int(1000 / ratio)]},
        }

    return {
        "suite": "accuracy", "seed": seed, "source": f"synthetic clicks, seed {seed}", "ranks": 2,
        "config": {"steps": 20, "batch": 64, "learning_rate": 0.05, "codec": "rows"},
        "uncompressed": one(seed / 1e5, 1.0), "compressed": one(change * (1 + seed), 20.0),
        "git_commit": "0123456789ab",
    }  # fmt: skip


def lookup_rows() -> list[ResultRow]:
    def row(table: int, table_class: str, codec: str, nbytes: int) -> ResultRow:
        facts = LookupFacts(
            table=table, table_class=table_class, num_rows=64, width=4, num_ranks=4, num_slices=4,
            num_iterations=1, num_distinct=9, num_distinct_codes=7, error_share=0.9,
        )  # fmt: skip
        bound = {"tight": 0.01, "base": 0.03, "loose": 0.05}[table_class]
        return kernel_row(
            codec, bound=bound, suite="lookups", input="synthetic-1234", lookups=facts,
            group=f"table {table}", original_nbytes=1024, num_values=256, encoded_nbytes=nbytes,
        )  # fmt: skip

    return [
        row(table, name, codec, nbytes * (table + 1))
        for table, name in enumerate(("tight", "base", "loose"))
        for codec, nbytes in (("rows", 10), ("flat", 100))
    ]


def prediction(measured_s: float, predicted_s: float) -> dict[str, Any]:
    return {
        "kind": "plan-check", "codec": "rows", "what": "step", "link": "1gbit", "num_ranks": 4,
        "batch": 2048, "measured_s": measured_s, "predicted_s": predicted_s, "error": 0.0,
        "hold_out": "link",
    }  # fmt: skip


def log_lines() -> list[dict[str, Any]]:
    volume = {"original_nbytes": 4000, "encoded_nbytes": 200, "ratio": 20.0}
    return [
        {"kind": "run", "step": 0, "command": "tersor train dlrm --steps 20", **ORIGIN},
        {"kind": "train", "step": 10, "loss": 0.6, "step_s": 0.01},
        {"kind": "eval", "step": 10, "auc": 0.7, "logloss": 0.5},
        {"kind": "train", "step": 20, "loss": 0.5, "step_s": 0.01},
        {"kind": "eval", "step": 20, "auc": 0.75, "logloss": 0.48},
        {"kind": "exchange", "step": 20, "forward": volume, "backward": volume, "tables": {"0": [9, 3]}},
    ]  # fmt: skip


def quickstart_result() -> dict[str, Any]:
    def one(auc: float, ratio: float) -> dict[str, Any]:
        volume = {"original_nbytes": 4000, "encoded_nbytes": int(4000 / ratio), "ratio": ratio}
        return {
            "auc": auc,
            "logloss": 0.5,
            "exchange_s_per_step": 0.01,
            "forward": volume,
            "backward": volume,
        }

    table = {
        "table": 0,
        "num_rows": 50,
        "class": "loose",
        "bound": 0.05,
        "ratio": 30.0,
        "reason": "few",
    }
    return {
        "runs": {"uncompressed": one(0.75, 1.0), "adaptive": one(0.7495, 20.0)}, "best_auc": 0.8,
        "tables": [table, {**table, "table": 1, "class": "base"}], "command": "tersor quickstart",
        "links": {
            "how": "Predicted.",
            "steps": [{"gbit_s": 1.0, "uncompressed_s": 0.02, "adaptive_s": 0.01, "speedup": 2.0}],
            "pays_up_to_gbit_s": 3.0,
        },
        **ORIGIN,
    }  # fmt: skip


def write_lines(target: Path, lines: list[Any]) -> Path:
    configs = [line.to_config() if isinstance(line, ResultRow) else line for line in lines]
    target.write_text("".join(json.dumps(line) + "\n" for line in configs), encoding="utf-8")
    return target


def write_all(folder: Path) -> list[str]:
    """Write one run of every kind; return their paths."""
    quickstart, training = folder / "quickstart", folder / "training"
    quickstart.mkdir()
    training.mkdir()
    (quickstart / "result.json").write_text(json.dumps(quickstart_result()))
    for name in ("uncompressed", "adaptive"):
        write_lines(quickstart / f"{name}.jsonl", log_lines())
    write_lines(training / "log.jsonl", log_lines())
    paths = [
        write_lines(folder / "kernels.jsonl", kernel_rows()),
        write_lines(folder / "exchanges.jsonl", exchange_rows()),
        write_lines(folder / "accuracy.jsonl", [pair(seed) for seed in range(3)]),
        write_lines(folder / "lookups.jsonl", lookup_rows()),
        write_lines(folder / "plan.jsonl", [prediction(0.1, 0.11), prediction(0.2, 0.3)]),
        quickstart,
        training,
    ]
    return [str(path) for path in paths]
