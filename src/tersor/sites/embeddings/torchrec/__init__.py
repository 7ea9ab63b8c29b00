"""Compression of TorchRec's embedding exchanges: codecs for the sharders of a model."""

from tersor.sites.embeddings.torchrec.registry import TorchRecCodecs, torchrec_codecs

__all__ = ["TorchRecCodecs", "torchrec_codecs"]
