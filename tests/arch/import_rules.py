"""Which module may import which: the layers of the package and the homes of heavy packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from tests.arch.source_files import SourceFile, source_files

PACKAGE_NAME: Final = "tersor"

# lowest first; a module imports its own row or one above it in this table
LAYERS: Final = (
    (
        "_process",
        "_version",
        "errors",
        "types",
        "atomic",
        "chunks",
        "division",
        "memory",
        "raw_bytes",
        "tracing",
    ),
    ("kernels",),
    ("codecs",),
    ("container",),
    ("api", "ops", "testing", "warm_up", "__init__"),
    ("comm",),
    ("policy", "planning"),
    ("sites",),
    ("workloads",),
    ("bench",),
    ("cli", "__main__"),
)
# the families of kernels, in the same order
FAMILIES: Final = (
    "runtime", "quantize", "transform", "predict", "pack", "entropy", "rows", "group", "payload",
    "batch",
)  # fmt: skip
# the folders of measurements, in the same order; those of one site never import another site's
BENCH_SITES: Final = ("kernels", "embeddings", "shards", "activations", "inputs", "fields")
BENCH_LAYERS: Final = (
    ("core",),
    ("plots",),
    ("peers",),
    ("planning",),
    ("report",),
    ("site",),
    BENCH_SITES,
    ("__init__", "sites", "page"),
)
BENCH_RANKS: Final = {name: rank for rank, names in enumerate(BENCH_LAYERS) for name in names}
RANKS: Final = {name: rank for rank, names in enumerate(LAYERS) for name in names}

_BY_FOLDER: Final = ("kernels", "sites", "bench")
"""Layers whose folders have rules of their own."""

# where a package may be imported, as patterns of the path inside the package
HOMES: Final = {
    "torch.distributed": ("comm/*", "sites/*", "workloads/*"),
    "triton": ("kernels/*/gpu.py", "kernels/*/gpu/*"),
    "numba": ("kernels/*/cpu.py", "kernels/*/cpu/*"),
    "llvmlite": ("kernels/*/cpu.py", "kernels/*/cpu/*"),
    "matplotlib": ("bench/plots/*",),
    "jinja2": ("bench/report/*",),
    "torchrec": ("sites/embeddings/torchrec/*",),
}


def findings(package: Path) -> list[str]:
    """Return one line per import that breaks a rule in the package at ``package``."""
    found = (finding for source in source_files(package) for finding in _check(source))
    return list(dict.fromkeys(found))


def _check(source: SourceFile) -> Iterator[str]:
    first = source.path.parts[0].removesuffix(".py")
    if first not in RANKS:
        yield f"{source.path}: {first!r} is in no layer; give it one in import_rules.LAYERS"
        return
    # several names from one module on one line are one import
    seen = {(line, _ruled_name(name)) for line, name in _imported_names(source)}
    if first == "kernels" and _family(source.path) not in (*FAMILIES, "__init__.py"):
        yield f"{source.path}: is in no family; give it one in import_rules.FAMILIES"
        return
    if first == "bench" and _bench_part(source.path) not in BENCH_RANKS:
        yield f"{source.path}: is in no folder of measurements that import_rules.BENCH_LAYERS has"
        return
    for line, name in sorted(seen):
        where = f"{source.path}:{line}"
        if name.startswith(f"{PACKAGE_NAME}."):
            yield from _check_layer(source.path, name.split(".")[1:], where)
        elif name in HOMES and not any(fnmatch(str(source.path), home) for home in HOMES[name]):
            yield f"{where}: {name} is imported only in {', '.join(HOMES[name])}"


def _check_layer(path: Path, target: list[str], where: str) -> Iterator[str]:
    own = path.parts[0].removesuffix(".py")
    if target[0] not in RANKS:
        yield f"{where}: {PACKAGE_NAME}.{target[0]} is in no layer"
    elif RANKS[target[0]] > RANKS[own]:
        yield f"{where}: {own} is below {target[0]} and must not import it"
    elif own == "kernels" == target[0] and len(target) > 1 and target[1] in FAMILIES:
        family = _family(path)
        if family in FAMILIES and FAMILIES.index(target[1]) > FAMILIES.index(family):
            yield f"{where}: family {family} is below {target[1]} and must not import it"
    elif own == "bench" == target[0] and len(target) > 1:
        yield from _check_bench(_bench_part(path), target[1], where)
    elif own == "sites" == target[0] and len(target) > 1 and len(path.parts) > 1:
        site = path.parts[1].removesuffix(".py")
        if site not in ("__init__", target[1]):
            yield f"{where}: site {site!r} must not import site {target[1]!r}"


def _check_bench(own: str, target: str, where: str) -> Iterator[str]:
    if own in BENCH_SITES and target in BENCH_SITES and own != target:
        yield f"{where}: measurements of {own!r} must not import those of {target!r}"
    elif BENCH_RANKS.get(target, 0) > BENCH_RANKS[own]:
        yield f"{where}: bench/{own} is below bench/{target} and must not import it"


def _family(path: Path) -> str:
    return path.parts[1]


def _bench_part(path: Path) -> str:
    return path.parts[1].removesuffix(".py")


def _ruled_name(name: str) -> str:
    """Cut an imported name to the part the rules are about."""
    parts = name.split(".")
    if parts[0] == PACKAGE_NAME:
        # `from tersor import Bound` reaches the package's top module
        top = parts[1] if len(parts) > 1 and parts[1] in RANKS else "__init__"
        return ".".join([PACKAGE_NAME, top, *parts[2 : 3 if top in _BY_FOLDER else 2]])
    return next((package for package in HOMES if f"{name}.".startswith(f"{package}.")), parts[0])


def _imported_names(source: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield line and full dotted name of everything the module imports, lazily or not."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, source.path)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield node.lineno, "torch.distributed"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            literals = (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))
            yield from ((node.lineno, name) for name in literals if isinstance(name, str))


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    if node.level == 0:
        return node.module or ""
    package = [PACKAGE_NAME, *path.parts[:-1]]
    parents = package[: len(package) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)
