"""Benchmarks of codecs and peers on arrays: the ``kernels``, ``memory``, ``programs`` and ``groups`` suites."""

from typing import Final

SUITES: Final = ("kernels", "memory", "log", "groups")
"""Values of ``ResultRow.suite`` in their rows; ``log`` marks logs of other projects' programs, and ``groups``
marks fused operations."""
