"""The ``groups`` suite: operations on groups of values, fused in one pass over memory for shards."""

from typing import Final

SUITE: Final = "groups"
"""The value of ``ResultRow.suite`` in their rows, and the name that selects all operations."""
