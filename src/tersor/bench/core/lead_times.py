"""Times with a lead for the host, as part of a result row."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tersor.bench.core.timing import Percentiles


class LeadTimes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of calls that the host could queue ahead, on a device that was busy before: see ``LeadClock``.

    Attributes:
        encode_s: seconds to encode the timed part of the input.
        decode_s: seconds to decode it.
        memcpy_s: seconds to copy it, timed in turn with these.
        clock: how these were timed.
    """

    encode_s: Percentiles
    decode_s: Percentiles
    memcpy_s: Percentiles | None = None
    clock: Literal["lead"] = "lead"

    def times(self) -> dict[str, Percentiles]:
        """Return what was timed, by names that no other time has."""
        return {"lead encode": self.encode_s, "lead decode": self.decode_s}
