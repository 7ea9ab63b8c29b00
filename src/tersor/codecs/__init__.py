"""Codecs: named, versioned pipelines. Importing this package registers the built-in ones."""

from tersor.codecs import (
    auto,
    cast,
    foreign,
    group,
    lossless,
    masks,
    ranges,
    raw,
    rms,
    rows,
    stream,
)
from tersor.codecs.codec import Codec
from tersor.codecs.packed import Packed
from tersor.codecs.registry import codec_ids, create, from_config, get, register, usable_codecs

BUILT_IN = (auto, cast, foreign, group, lossless, masks, ranges, raw, rms, rows, stream)
"""The modules whose import registers codecs."""

__all__ = [
    "BUILT_IN",
    "Codec",
    "Packed",
    "codec_ids",
    "create",
    "from_config",
    "get",
    "register",
    "usable_codecs",
]
