"""Choices of ``auto`` that are reused for later tensors of the same shape, dtype and device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tersor.codecs.codec import Codec
from tersor.codecs.lru_cache import LruCache

MAX_CALLS: Final = 64
"""Calls that share one choice. Trying all candidates takes as long as several calls on 256 MiB, which is a small
part of 64 calls."""
_MAX_DRIFT: Final = 0.1
"""Largest relative change of the compression ratio; beyond it, the data no longer resembles the tensor that the
choice was made for."""


@dataclass(slots=True)
class CachedChoice:
    """A codec that ``auto`` chose, with what is needed to decide whether to choose again.

    Attributes:
        codec: the chosen codec.
        reason: a sentence that says why it was chosen.
        ratio: the compression ratio that it reached on the tensor it was chosen for.
        num_calls: number of calls that used it, including the first.
    """

    codec: Codec
    reason: str
    ratio: float
    num_calls: int = 1

    def repeated_reason(self) -> str:
        """Return the reason for reusing the codec, as a sentence."""
        calls = "call" if self.num_calls == 1 else "calls"
        return f"chosen {self.num_calls} {calls} before for this shape: {self.reason}"

    def is_reusable(self, ratio: float) -> bool:
        """True if the next call may reuse the choice, given the ratio that the last one reached."""
        is_alike = abs(ratio - self.ratio) <= _MAX_DRIFT * self.ratio
        return is_alike and self.num_calls < MAX_CALLS


CHOICES: Final[LruCache[CachedChoice]] = LruCache(max_forms=1024)
"""Keyed by the spec of ``auto``, the shape, the dtype and the device."""
