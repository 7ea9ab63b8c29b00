"""Operations on groups that are fused in one pass over memory, as shards call them: the ``groups`` suite."""

from typing import Final

SUITE: Final = "groups"
"""What ``ResultRow.suite`` says in their rows, and the name that stands for all of them."""
