"""``tersor warmup`` compiles what is named, shows what it took, and refuses what there is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tersor.cli import warmup as verb
from tersor.warm_up import WarmedUp
from tests.arch.source_files import REPOSITORY


def test_every_named_codec_and_dtype_has_a_row(tersor) -> None:
    found = tersor.ok("warmup", "--codecs", "half, raw", "--dtypes", "f32,bfloat16", "--json").json
    pairs = [("half", "f32"), ("half", "bf16"), ("raw", "f32"), ("raw", "bf16")]
    assert [(row["codec"], row["dtype"]) for row in found["codecs"]] == pairs
    assert found["device"] == "cpu"
    assert found["compile_s"] == sum(row["compile_s"] for row in found["codecs"])
    assert [row["again_s"] for row in found["codecs"]] == [0.0] * 4


def test_people_see_a_table(tersor) -> None:
    done = tersor.ok("warmup", "--codecs", "half")
    assert "half" in done.out
    assert "second run" in done.out
    assert "compiling took" in done.err


def test_a_second_run_that_compiles_is_a_failed_check(tersor, monkeypatch) -> None:
    slow = WarmedUp("half", torch.float32, 2.0, 0.5)
    monkeypatch.setattr(verb, "warmup", lambda *_, **__: [slow])
    assert tersor("warmup").code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--codecs", "gzip"), "unknown codec 'gzip'"),
        (("--dtypes", "f33"), "unknown dtype 'f33'"),
        (("--codecs", "flat", "--dtypes", "i32"), "codec 'flat' cannot encode torch.int32"),
        (("--codecs", ","), "name at least one codec"),
        (("--device", "tpu"), "device must be 'cpu' or 'cuda'"),
    ],
)
def test_what_cannot_be_compiled_is_one_sentence(tersor, arguments, words) -> None:
    assert words in tersor.refused("warmup", *arguments)


def test_a_missing_cuda_device_is_one_sentence(tersor, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no CUDA device" in tersor.refused("warmup", "--device", "cuda")


@pytest.mark.gpu
def test_on_cuda_a_second_process_compiles_nothing(tmp_path) -> None:
    command = [
        sys.executable, "-m", "tersor", "warmup", "--device", "cuda", "--codecs", "flat,group8",
        "--dtypes", "f32", "--json",
    ]  # fmt: skip
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    first, second = (
        json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
        for _ in range(2)
    )
    assert all(row["compile_s"] > 0 for row in first["codecs"])
    assert second["compile_s"] == 0
