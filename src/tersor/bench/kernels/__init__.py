"""Codecs and peers on arrays: the ``kernels``, ``memory`` and ``programs`` suites, and their goals."""

from typing import Final

SUITES: Final = ("kernels", "memory")
"""What ``ResultRow.suite`` says in their rows."""
