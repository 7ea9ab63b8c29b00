"""Looked-up embedding rows between ranks: the compressed all-to-all of recommendation models."""

from tersor.policy import AdaptiveBounds, ClassBounds, Decay
from tersor.sites.embeddings.exchange import Exchange, Pending
from tersor.sites.embeddings.plan import CodecPlan
from tersor.sites.embeddings.stats import ExchangeStats, Volume

__all__ = [
    "AdaptiveBounds",
    "ClassBounds",
    "CodecPlan",
    "Decay",
    "Exchange",
    "ExchangeStats",
    "Pending",
    "Volume",
]
