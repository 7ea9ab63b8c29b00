"""Codecs and peers on arrays: the ``kernels``, ``memory``, ``programs`` and ``groups`` suites, and their goals."""

from typing import Final

SUITES: Final = ("kernels", "memory", "log", "groups")
"""What ``ResultRow.suite`` says in their rows; ``log`` in those of other projects' programs, ``groups`` in those
of fused operations."""
