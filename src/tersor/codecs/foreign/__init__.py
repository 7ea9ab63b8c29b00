"""Third-party compressors as codecs with a verified error bound. Importing this package registers them."""

from tersor.codecs.foreign import sz3, zfp

__all__ = ["sz3", "zfp"]
