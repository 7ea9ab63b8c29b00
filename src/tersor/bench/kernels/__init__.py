"""Codecs and peers on arrays: the ``kernels``, ``memory`` and ``programs`` suites, and their goals."""

from typing import Final

SUITES: Final = ("kernels", "memory", "log")
"""What ``ResultRow.suite`` says in their rows; ``log`` in those of other projects' programs."""
