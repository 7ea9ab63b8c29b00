"""What must not appear in ``src``; run by the tests and, on single files, before each commit.

python -m tests.arch.banned src/tersor/types.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.arch.source_files import SourceFile, source_files

HOMELESS: Final = {"utils", "helpers", "common", "misc"}
SERIALIZERS: Final = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
CALLS: Final = {
    "print": "print writes past the reader; return the value, or use rich in cli",
    "eval": "eval runs what it reads",
    "exec": "exec runs what it reads",
    "breakpoint": "breakpoint stops the user's program",
}


def findings(root: Path) -> list[str]:
    """Return one line per banned construct in the package at ``root``."""
    return [finding for source in source_files(root) for finding in check(source)]


def check(source: SourceFile) -> Iterator[str]:
    """Yield one line per banned construct in one module."""
    homeless = HOMELESS & {part.removesuffix(".py") for part in source.path.parts}
    if homeless:
        yield f"{source.path}: {homeless.pop()!r} names no concept; find the one it holds"
    for number, line in enumerate(source.text.splitlines(), 1):
        if re.search(r"#.*\bTODO\b(?!\(#\d+\))", line):
            yield f"{source.path}:{number}: a TODO names an issue, as in TODO(#41)"
    parts = source.path.parts
    in_gpu_kernel = "kernels" in parts and ("gpu" in parts or source.path.name == "gpu.py")
    for node in ast.walk(source.tree):
        reason = _banned(node)
        if reason is None and in_gpu_kernel and _divides(node):
            reason = "triton's / is not correctly rounded; multiply by a reciprocal, or use div_rn"
        if reason is not None:
            yield f"{source.path}:{getattr(node, 'lineno', 0)}: {reason}"


def _divides(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)


def _banned(node: ast.AST) -> str | None:
    if isinstance(node, ast.ExceptHandler):
        caught = [ast.unparse(part) for part in _parts(node.type)]
        cleans_up = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if not caught or ({"Exception", "BaseException"} & set(caught) and not cleans_up):
            return "catch the narrowest error, not everything"
    elif isinstance(node, ast.Assert):
        return "assert vanishes under -O; raise an error from tersor.errors"
    elif isinstance(node, ast.Import | ast.ImportFrom):
        modules = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        if SERIALIZERS & {module.split(".")[0] for module in modules}:
            return "a pickle runs what it reads"
    elif isinstance(node, ast.Call):
        return _banned_call(node)
    return None


def _banned_call(node: ast.Call) -> str | None:
    name = ast.unparse(node.func)
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name == "torch.load" and keywords.get("weights_only") != "True":
        return "torch.load without weights_only=True runs what it reads"
    if name in ("np.load", "numpy.load") and keywords.get("allow_pickle", "False") != "False":
        return "np.load with allow_pickle runs what it reads"
    return CALLS.get(name)


def _parts(node: ast.expr | None) -> list[ast.expr]:
    if node is None:
        return []
    return node.elts if isinstance(node, ast.Tuple) else [node]


def main(names: list[str]) -> int:
    """Check the named files, print what is banned, and return the exit code."""
    files = [SourceFile.read(Path(name), Path()) for name in names]
    found = [finding for file in files for finding in check(file)]
    sys.stdout.writelines(f"{finding}\n" for finding in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
