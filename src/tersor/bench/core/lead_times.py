"""Times of calls that the host queued ahead of the device, as part of a result row."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tersor.bench.core.timing import Percentiles


class LeadTimes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of calls that the host queued while the device was still busy; see ``LeadClock``.

    Attributes:
        encode_s: seconds to encode the timed part of the input.
        decode_s: seconds to decode it.
        memcpy_s: seconds to copy it, timed in turn with the other two.
        clock: the kind of clock.
    """

    encode_s: Percentiles
    decode_s: Percentiles
    memcpy_s: Percentiles | None = None
    clock: Literal["lead"] = "lead"

    def times(self) -> dict[str, Percentiles]:
        """Return the times, under names that no other time of a row has."""
        return {"lead encode": self.encode_s, "lead decode": self.decode_s}
