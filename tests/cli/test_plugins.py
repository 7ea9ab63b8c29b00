"""Packages whose codecs cannot be used: one line each, and everything else works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.arch.source_files import REPOSITORY
from tests.distributions import NEGATE, install

CODEC = """
from dataclasses import dataclass
import torch, tersor
@dataclass(frozen=True, kw_only=True)
class Mine(tersor.Codec):
    codec_id = "{id}"
    guarantee = "nothing"
    def encode(self, xs, bounds=None):
        return tersor.EncodedList.apart([x.view(-1).view(torch.uint8).clone() for x in xs], xs)
    def decode(self, encoded, outs):
        for payload, out in zip(encoded.payloads(), outs):
            out.view(-1).view(torch.uint8).copy_(payload)
    def max_nbytes(self, shape, dtype):
        return torch.Size(shape).numel() * dtype.itemsize
"""
LYING = (
    CODEC.format(id="honest")
    + """
from tersor import Bound
@dataclass(frozen=True, kw_only=True)
class Lying(Mine):
    codec_id = "lying"
    bound: Bound
    def resolve_bound(self, x):
        return tersor.create("flat", bound=self.bound).resolve_bound(x)
    def decode(self, encoded, outs):
        Mine.decode(self, encoded, outs)
        for out in outs:
            out.nan_to_num_()
"""
)
WARY = (
    LYING.replace('"lying"', '"wary"').replace("out.nan_to_num_()", "pass")
    + """
    def __post_init__(self):
        if self.bound == Bound.absolute(0.0):
            raise ValueError("the bound must be positive")
"""
)
BROKEN = {
    "raising": (
        "Mine",
        "raise RuntimeError('no licence\\nfound')",
        "RuntimeError: no licence found",
    ),
    "leaving": ("Mine", "import sys\nsys.exit('bye')", "SystemExit: bye"),
    "unparsable": ("Mine", "def", "SyntaxError"),
    "needing": ("Mine", "import a_package_that_is_not_there", "a_package_that_is_not_there"),
    "misspelt": ("Mein", CODEC.format(id="misspelt"), "AttributeError"),
    "unpromising": ("Mine", CODEC.format(id="unpromising").replace("guarantee", "x"), "guarantee"),
    "nameless": ("Mine", CODEC.format(id="x").replace("codec_id", "y"), "codec_id"),
    "misnamed": ("Mine", CODEC.format(id="another"), "its codec_id is 'another'"),
    "abstract": ("Mine", CODEC.format(id="abstract").replace("max_n", "n"), "lacks max_nbytes"),
    "function": ("make", "def make(): pass", "no subclass of tersor.Codec"),
    "flat": ("Mine", CODEC.format(id="flat"), "taken by tersor.codecs.stream:Flat"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return a folder with one package per fault, and good ones, of which two offer the same id."""
    folder = tmp_path_factory.mktemp("site")
    for codec_id, (name, source, _) in BROKEN.items():
        install(folder, f"pkg-{codec_id}", {codec_id: name}, source)
    install(folder, "pkg-lying", {"lying": "Lying"}, LYING)
    install(folder, "pkg-wary", {"wary": "Lying"}, WARY)
    (folder / "pkg_inside.py").write_text(CODEC.format(id="passed-on"), encoding="utf-8")
    install(folder, "pkg-passing", {"passed-on": "Mine"}, "from pkg_inside import Mine")
    install(folder, "pkg-good", {"negate": "Negate"}, NEGATE)
    install(folder, "pkg-later", {"negate": "Negate"}, NEGATE)
    return folder


def tersor(folder: Path, site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(site)])
    done = subprocess.run(
        [sys.executable, "-m", "tersor", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


def test_each_unusable_codec_is_one_line_and_the_others_are_listed(tmp_path, site):
    done = tersor(tmp_path, site, "codecs", "--json")
    assert done.returncode == 0, done.stderr
    listed = {codec["id"] for codec in json.loads(done.stdout)["codecs"]}
    assert {"raw", "flat", "negate", "passed-on"} <= listed
    assert not listed & (BROKEN.keys() - {"flat"})
    lines = done.stderr.splitlines()
    assert len(lines) == len(BROKEN) + 1
    for codec_id, (_, _, why) in BROKEN.items():
        (line,) = [line for line in lines if f"'pkg-{codec_id}'" in line]
        assert why in line
    assert [line for line in lines if "'pkg-later'" in line and "pkg_good:Negate" in line]
    assert json.loads(done.stdout)["unusable"] == [line.partition(": ")[2] for line in lines]


def test_files_are_written_and_read_despite_broken_packages(tmp_path, site):
    x = np.arange(600, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    for codec in ("raw", "negate", "passed-on"):
        written = tersor(tmp_path, site, "compress", "x.npy", "--codec", codec, "--force")
        assert written.returncode == 0, written.stderr
        # an id that is taken is reported whatever was asked for, as it may be meant
        assert "'pkg-flat'" in written.stderr
        assert "'pkg-passing'" not in written.stderr
        read = tersor(tmp_path, site, "decompress", "x.npy.tsr", "-o", "y.npy", "--force")
        assert read.returncode == 0, read.stderr
        assert np.array_equal(np.load(tmp_path / "y.npy"), x)


def test_asking_for_a_broken_codec_says_why(tmp_path, site):
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    done = tersor(tmp_path, site, "compress", "x.npy", "--codec", "raising")
    assert done.returncode == 2
    assert "'pkg-raising'" in done.stderr
    assert "RuntimeError: no licence found" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_a_codec_that_loses_nan_fails_its_check(tmp_path, site):
    done = tersor(tmp_path, site, "codecs", "--check", "lying", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["codec"] == "lying"
    assert not found["passed"]
    failed = {check["name"] for check in found["checks"] if not check["passed"]}
    assert {"bound holds", "NaN and infinities stay"} <= failed
    assert all(check["passed"] == (not check["problem"]) for check in found["checks"])


def test_a_codec_that_refuses_a_bound_fails_its_check_in_one_line(tmp_path, site):
    done = tersor(tmp_path, site, "codecs", "--check", "wary", "--json")
    assert done.returncode == 1, done.stderr
    problems = {check["name"]: check["problem"] for check in json.loads(done.stdout)["checks"]}
    assert "it raised ValueError: the bound must be positive" in problems["bound holds"]
