"""Choices of ``auto`` that stand for later tensors of the same form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tersor.codecs.codec import Codec
from tersor.codecs.recent_forms import RecentForms

MAX_CALLS: Final = 64
"""Calls that a choice stands for: trying all candidates takes as long as several calls on 256 MiB, a small part
of 64."""
_MAX_DRIFT: Final = 0.1
"""Of the ratio: beyond it the data is no longer what the choice was made for."""


@dataclass(slots=True)
class Choice:
    """A codec that was chosen, and how it has done since.

    Attributes:
        codec: the chosen codec.
        reason: why, in a sentence.
        ratio: that it reached on the tensor it was chosen for.
        num_calls: that it was taken for, the first one included.
    """

    codec: Codec
    reason: str
    ratio: float
    num_calls: int = 1

    def repeated_reason(self) -> str:
        """Return why the codec is taken once more."""
        calls = "call" if self.num_calls == 1 else "calls"
        return f"chosen {self.num_calls} {calls} before for this shape: {self.reason}"

    def stands(self, ratio: float) -> bool:
        """True if the choice holds for one more call, after one that reached ``ratio``."""
        is_alike = abs(ratio - self.ratio) <= _MAX_DRIFT * self.ratio
        return is_alike and self.num_calls < MAX_CALLS


CHOICES: Final[RecentForms[Choice]] = RecentForms(max_forms=1024)
"""By the spec of ``auto``, shape, dtype and device."""
