from __future__ import annotations

import pytest

from tests.arch.banned import findings, main
from tests.arch.source_files import PACKAGE, plant

FAULTS = {
    "bare except": ("x.py", "try:\n    f()\nexcept:\n    g()"),
    "except Exception": ("x.py", "try:\n    f()\nexcept Exception as error:\n    g()"),
    "hidden in a tuple": ("x.py", "try:\n    f()\nexcept (OSError, Exception):\n    g()"),
    "assert": ("x.py", "assert size > 0"),
    "print": ("cli/x.py", "print('done')"),
    "eval": ("x.py", "eval(header)"),
    "pickle": ("x.py", "import pickle"),
    "from pickle": ("x.py", "from pickle import loads"),
    "torch.load": ("x.py", "torch.load(path)"),
    "torch.load unsafe": ("x.py", "torch.load(path, weights_only=False)"),
    "np.load": ("x.py", "np.load(path, allow_pickle=True)"),
    "division in triton": ("kernels/pack/gpu.py", "scaled = x / step"),
    "division in place": ("kernels/pack/gpu.py", "x /= step"),
    "division in a folder": ("kernels/pack/gpu/tile.py", "scaled = x / step"),
    "no concept": ("codecs/utils.py", ""),
    "no concept, folder": ("common/x.py", ""),
    "todo": ("x.py", "# TODO: later"),
}

ALLOWED = {
    "x.py": "try:\n    f()\nexcept (OSError, ValueError):\n    g()\n# TODO(#41): drop the floor",
    "cli/x.py": "console.print('done')\ntorch.load(path, weights_only=True)",
    "kernels/pack/gpu.py": "blocks = n // 32",
    "kernels/pack/cpu.py": "scaled = x / step",
    "atomic.py": "try:\n    f()\nexcept BaseException:\n    tidy()\n    raise",
    "io.py": "np.load(path, mmap_mode='r', allow_pickle=False)",
}


def test_src_holds_nothing_banned() -> None:
    assert findings(PACKAGE) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_construct_is_found_once(fault, tmp_path) -> None:
    name, text = FAULTS[fault]
    found = findings(plant(tmp_path, {name: text}))
    assert len(found) == 1, found


def test_what_is_allowed_passes(tmp_path) -> None:
    assert findings(plant(tmp_path, ALLOWED)) == []


def test_the_commit_hook_fails_on_a_bad_file(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(plant(tmp_path, {"good.py": "x = 1", "bad.py": "assert x"}))
    assert main(["good.py"]) == 0
    assert main(["good.py", "bad.py"]) == 1
    assert capsys.readouterr().out.startswith("bad.py:1: ")
