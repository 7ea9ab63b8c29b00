"""No two folders import each other, directly or in a circle; a folder and its own subfolders may."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.arch.import_rules import PACKAGE_NAME, _imported_names
from tests.arch.source_files import PACKAGE, plant, source_files


def cycle(package: Path) -> list[str]:
    """Return the folders of one circle of imports; empty if there is none."""
    sources = list(source_files(package))
    modules = {_name(source.path): source.path.parent for source in sources}
    graph: dict[Path, set[Path]] = {}
    for source in sources:
        own = source.path.parent
        # what a package offers is imported from its own modules
        if own == Path() or source.path.name == "__init__.py":
            continue
        for _, name in _imported_names(source):
            other = _folder_of(name, modules)
            if (
                other is not None
                and own not in (other, *other.parents)
                and other not in own.parents
            ):
                graph.setdefault(own, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(folder) for folder in error.args[1]]
    return []


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join([PACKAGE_NAME, *(parts[:-1] if parts[-1] == "__init__" else parts)])


def _folder_of(name: str, modules: dict[str, Path]) -> Path | None:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    folder = modules.get(name)
    return None if folder == Path() else folder


def test_no_folders_import_each_other_in_a_circle():
    assert cycle(PACKAGE) == []


def test_a_circle_is_found(tmp_path):
    root = plant(
        tmp_path,
        {
            "a/one.py": "from tersor.b.two import x\n",
            "b/two.py": "import tersor.c.three\n",
            "c/three.py": "from tersor.a import one\n",
            "c/inner/four.py": "from tersor.c import three\n",
        },
    )
    assert {"a", "b", "c"} == set(cycle(root))
