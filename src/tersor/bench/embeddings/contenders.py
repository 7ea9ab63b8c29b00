"""The contenders: codecs for exchanging look-ups and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tersor import planning
from tersor.codecs import registry
from tersor.errors import SpecError
from tersor.sites.embeddings import ClassBounds
from tersor.workloads.network.exchange_case import Contender

CONTENDERS: Final = ("float32", "half", "int8", "4-bit", "rows", "rows+int8", "auto")
"""The names of the contenders.

``float32`` leaves rows and gradients uncompressed, and ``half`` sends both in half precision. ``int8`` and
``4-bit`` send both in 8 or 4 bits with a scale per row. ``rows`` keeps rows within the default bounds and
sends gradients in half precision (the default of ``Exchange``) or, with ``+int8``, in 8 bits. ``auto``
chooses each table's codec by measurement and sends gradients in 8 bits.
"""
BASELINE: Final = planning.BASELINE
BOUNDED: Final = ("rows", "rows+int8", "auto")
"""The contenders that promise an error bound for rows."""
NOTES: Final[Mapping[str, str]] = {
    "int8": "group8 with a row as group: a float32 scale per row and 255 symmetric levels; row-wise "
    "INT8 elsewhere has a minimum per row too, 4 bytes more",
    "4-bit": "group4 with a row as group: a float32 scale per row and 15 symmetric levels",
}


def make_contender(name: str, dim: int) -> Contender:
    """Return the contender with a name, for rows of ``dim`` values.

    Raises:
        SpecError: no contender has that name.
    """
    int8, int4 = (registry.create(codec, group=dim).to_config() for codec in ("group8", "group4"))
    pairs: dict[str, tuple[Any, Any]] = {
        "float32": ("raw", "none"),
        "half": ("half", "half"),
        "int8": (int8, int8),
        "4-bit": (int4, int4),
        "rows": ("rows", "half"),
        "rows+int8": ("rows", int8),
        "auto": ("auto", int8),
    }
    if name not in pairs:
        raise SpecError(f"exchanges are {', '.join(CONTENDERS)}, not {name!r}")
    return Contender(name, *pairs[name])


def described(contender: Contender, direction: str) -> tuple[str, dict[str, Any]]:
    """Return the codec version and options of a contender in one direction, for its row."""
    spec = contender.forward if direction == "forward" else contender.backward
    config: Any = {"id": "raw" if spec == "none" else spec} if isinstance(spec, str) else spec
    options = {name: value for name, value in config.items() if name not in ("id", "version")}
    if direction == "forward" and contender.name in BOUNDED:
        options["bounds"] = asdict(ClassBounds())
    version = registry.get(config["id"]).version
    return str(version), {"codec": config["id"], **options}
