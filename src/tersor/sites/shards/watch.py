"""What changed the shards of a model: an optimizer's step, or something else."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from tersor.sites.shards.weights import Change


class WeightWatch:
    """Tells steps of an optimizer from other changes of the weights.

    A write moves torch's version counters, unless it goes through ``.data``. Of an optimizer's step it is
    enough to know which weights the optimizer has.
    """

    def __init__(self, groups: list[Any]) -> None:
        """Take FSDP's groups of parameters."""
        self._groups = groups
        self._known = [_versions(group) for group in groups]
        self._asked = list(self._known)
        self._changes = [Change.EDIT] * len(groups)

    def changes(self) -> list[Change]:
        """Return what became of the weights of all groups since they were gathered."""
        return [
            Change.EDIT if _versions(group) != known else change
            for group, known, change in zip(self._groups, self._known, self._changes, strict=True)
        ]

    def ask(self) -> list[Change]:
        """Return ``changes``, which ranks agree on; what is written from now on they do not know of."""
        self._asked = [_versions(group) for group in self._groups]
        return self.changes()

    def is_edited_since_asked(self, unit: int) -> bool:
        """True if a group's weights were written to after ranks had agreed on what to do with them."""
        return _versions(self._groups[unit]) != self._asked[unit]

    def gathered(self, unit: int) -> None:
        """Know that a group's weights have been gathered as ranks had agreed."""
        self._known[unit] = self._asked[unit]
        self._changes[unit] = Change.NONE

    def before_step(self) -> None:
        """Notice edits before an optimizer adds its own."""
        for k, group in enumerate(self._groups):
            versions = _versions(group)
            if versions != self._known[k]:
                self._known[k], self._changes[k] = versions, Change.EDIT

    def after_step(self, stepped: Container[int] = ()) -> bool:
        """Take what changed since ``before_step`` for a step; return whether anything did.

        ``stepped`` has the ids of parameters that an optimizer wrote to, however it did.
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
        """Send differences of all weights, also where no version counter moved."""
        self._known = [_versions(group) for group in self._groups]
        self._changes = [Change.STEP] * len(self._groups)

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
