"""Kernels in ten families, lowest first: ``reference`` defines the answer, cpu and gpu give its bits."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tersor.kernels.runtime.op import Op


def operations() -> dict[str, Op]:
    """Return every operation by name, found by importing all packages of kernels."""
    found: dict[str, Op] = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        if module.ispkg:
            members = vars(import_module(module.name)).values()
            found |= {member.name: member for member in members if isinstance(member, Op)}
    return found


__all__ = ["operations"]
