"""Every codec with every option that changes its bytes, by name."""

from __future__ import annotations

from typing import Any, Final

from tersor.codecs import Codec, create
from tersor.types import Bound

# eleven codes around zero and an escape; two hundred and ninety-nine and an escape
NARROW_TABLE: Final = (16, 32, 64, 256, 768, 1520, 768, 256, 128, 64, 32, 192)
WIDE_TABLE: Final = (*([54] * 299), 16384 - 299 * 54)

BOUNDED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "flat": ("flat", {}),
    "flat-64": ("flat", {"block": 64}),
    "flat-base": ("flat", {"base": True}),
    "flat-64-base-lorenzo2": ("flat", {"block": 64, "base": True, "lorenzo": 2}),
    "delta": ("delta", {}),
    "delta-2": ("delta", {"lorenzo": 2}),
    "delta-3-64": ("delta", {"lorenzo": 3, "block": 64}),
    "huffman": ("huffman", {}),
    "huffman-lorenzo1": ("huffman", {"lorenzo": 1}),
    "huffman-lorenzo3": ("huffman", {"lorenzo": 3}),
    "ans": ("ans", {}),
    "ans-lorenzo2": ("ans", {"lorenzo": 2}),
    "ans-static": ("ans", {"frequencies": NARROW_TABLE}),
    "ans-static-wide": ("ans", {"frequencies": WIDE_TABLE, "lorenzo": 1}),
    "lz4": ("lz4", {}),
    "lz4-fast-lorenzo1": ("lz4", {"acceleration": 9, "lorenzo": 1}),
    "zstd": ("zstd", {}),
    "zstd-7-lorenzo2": ("zstd", {"level": 7, "lorenzo": 2}),
    "rows": ("rows", {}),
    "rows-ans": ("rows", {"entropy": "ans"}),
    "sz3": ("sz3", {}),
    "sz3-interp": ("sz3", {"algorithm": "interp"}),
    "sz3-lorenzo-reg": ("sz3", {"algorithm": "lorenzo-reg"}),
    "sz3-nopred": ("sz3", {"algorithm": "nopred"}),
    "sz3-lossless": ("sz3", {"algorithm": "lossless"}),
    "zfp": ("zfp", {}),
}
AUTO: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "auto": ("auto", {}),
    "auto-bandwidth": ("auto", {"bandwidth_gbit_s": 40.0}),
}
FIXED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "raw": ("raw", {}),
    "half": ("half", {}),
    "bf16": ("bf16", {}),
    "fp8": ("fp8", {}),
    "fp8-e5m2-7": ("fp8", {"format": "e5m2", "group": 7}),
    "group8": ("group8", {}),
    "group8-64-seed": ("group8", {"group": 64, "seed": 2**63}),
    "group4": ("group4", {}),
    "group4-2-seed": ("group4", {"group": 2, "seed": 0}),
    "group4-hadamard": ("group4", {"hadamard": True, "group": 32}),
    "group2": ("group2", {}),
    "group2-64-seed": ("group2", {"group": 64, "seed": 2**63}),
    "mask4": ("mask4", {}),
    "mask2": ("mask2", {}),
}
SCALED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "rms": ("rms", {}),
    "rms-zeros-half": ("rms", {"zeros": True, "step": 0.5}),
    "rms-nearest-fine": ("rms", {"zeros": False, "step": 0.13}),
    "lossless": ("lossless", {}),
}
"""Sizes that vary, and no bound: the error is in units of each group's own scale, or there is none."""
PAYLOADS: Final = {**BOUNDED, **FIXED, **SCALED}
"""The codecs that write payloads of their own: all but ``auto``."""


def build(name: str, bound: Bound | None = None) -> Codec:
    """Return a variant; ``bound`` is for those that take one and left out by the others."""
    codec_id, options = {**PAYLOADS, **AUTO}[name]
    return create(codec_id, **options, **({"bound": bound} if name in {**BOUNDED, **AUTO} else {}))
