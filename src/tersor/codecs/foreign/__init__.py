"""Compressors of other projects as codecs that keep our promise. Importing this registers them."""

from tersor.codecs.foreign import sz3, zfp

__all__ = ["sz3", "zfp"]
