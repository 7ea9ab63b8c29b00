"""Detection of changes to a model's shards, and whether an optimizer step made them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from tersor.sites.shards.weights import Change


class WeightWatch:
    """Distinguishes optimizer steps from other changes of the weights.

    Writes are detected by torch's version counters, which writes through ``.data`` bypass. For optimizer steps it is
    enough to know which weights the optimizer updates.
    """

    def __init__(self, groups: list[Any]) -> None:
        """Watch FSDP's parameter groups."""
        self._groups = groups
        self._known = [_versions(group) for group in groups]
        self._snapshot = list(self._known)
        self._changes = [Change.EDIT] * len(groups)

    def changes(self) -> list[Change]:
        """Return how the weights of each group have changed since they were last gathered."""
        return [
            Change.EDIT if _versions(group) != known else change
            for group, known, change in zip(self._groups, self._known, self._changes, strict=True)
        ]

    def snapshot_changes(self) -> list[Change]:
        """Return ``changes`` for ranks to agree on, and remember the versions that it covers."""
        self._snapshot = [_versions(group) for group in self._groups]
        return self.changes()

    def is_edited_since_snapshot(self, unit: int) -> bool:
        """True if a group's weights were written to after the last ``snapshot_changes``."""
        return _versions(self._groups[unit]) != self._snapshot[unit]

    def mark_gathered(self, unit: int) -> None:
        """Record that a group's weights were gathered in the version of the last ``snapshot_changes``."""
        self._known[unit] = self._snapshot[unit]
        self._changes[unit] = Change.NONE

    def before_step(self) -> None:
        """Record edits made before an optimizer step, so that they are not attributed to it."""
        for k, group in enumerate(self._groups):
            versions = _versions(group)
            if versions != self._known[k]:
                self._known[k], self._changes[k] = versions, Change.EDIT

    def after_step(self, stepped: Container[int] = ()) -> bool:
        """Attribute changes since ``before_step`` to an optimizer step; return whether there were any.

        ``stepped`` contains the ids of the parameters that the optimizer updates, which count as changed even if no
        version counter moved.
        """
        has_changed = False
        for k, group in enumerate(self._groups):
            versions = _versions(group)
            is_stepped = any(id(one.sharded_param) in stepped for one in group.fsdp_params)
            if is_stepped or versions != self._known[k]:
                has_changed = True
                self._known[k] = versions
                self._changes[k] = max(self._changes[k], Change.STEP)
        return has_changed

    def mark_step(self) -> None:
        """Record an optimizer step for all groups, even where no version counter moved."""
        self._known = [_versions(group) for group in self._groups]
        self._changes = [Change.STEP] * len(self._groups)

    def mark_loaded(self, changes: Sequence[int]) -> None:
        """Record that weights were loaded together with their ``changes``."""
        self._known = [_versions(group) for group in self._groups]
        self._changes = [Change(change) for change in changes]


def _versions(group: Any) -> tuple[tuple[int, int, int], ...]:
    """Return version numbers that change on every write to a shard, through the DTensor or its local tensor."""
    found = []
    for one in group.fsdp_params:
        shard = one.sharded_param
        found.append((id(shard), shard._version, shard.to_local()._version))  # noqa: SLF001
    return tuple(found)
