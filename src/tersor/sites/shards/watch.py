"""What changed the shards of a model: an optimizer's step, or something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tersor.sites.shards.weights import Change


class WeightWatch:
    """Tells steps of an optimizer from other changes of the weights, by torch's version counters."""

    def __init__(self, groups: list[Any]) -> None:
        """Take FSDP's groups of parameters."""
        self._groups = groups
        self._known = [_versions(group) for group in groups]
        self._changes = [Change.EDIT] * len(groups)

    def change_of(self, unit: int) -> Change:
        """Return what became of a group's weights since they were gathered."""
        if _versions(self._groups[unit]) != self._known[unit]:
            return Change.EDIT
        return self._changes[unit]

    def gathered(self, unit: int) -> None:
        """Know that a group's weights have been gathered."""
        self._known[unit] = _versions(self._groups[unit])
        self._changes[unit] = Change.NONE

    def before_step(self) -> None:
        """Notice edits before an optimizer adds its own."""
        for k, group in enumerate(self._groups):
            versions = _versions(group)
            if versions != self._known[k]:
                self._known[k], self._changes[k] = versions, Change.EDIT

    def after_step(self) -> bool:
        """Take what changed since ``before_step`` for a step; return whether anything did."""
        has_changed = False
        for k, group in enumerate(self._groups):
            versions = _versions(group)
            if versions != self._known[k]:
                has_changed = True
                self._known[k] = versions
                self._changes[k] = max(self._changes[k], Change.STEP)
        return has_changed

    def mark(self) -> None:
        """Take all edits for steps."""
        self._changes = [min(change, Change.STEP) for change in self._changes]

    def changes(self) -> list[Change]:
        """Return what became of the weights of all groups."""
        return [self.change_of(k) for k in range(len(self._groups))]

    def loaded(self, changes: Sequence[int]) -> None:
        """Know that weights were loaded together with what had become of them."""
        self._known = [_versions(group) for group in self._groups]
        self._changes = [Change(change) for change in changes]


def _versions(group: Any) -> tuple[tuple[int, int, int], ...]:
    """Return what changes whenever a shard is written to, whether through FSDP's tensor or its own."""
    found = []
    for one in group.fsdp_params:
        shard = one.sharded_param
        found.append((id(shard), shard._version, shard.to_local()._version))  # noqa: SLF001
    return tuple(found)
