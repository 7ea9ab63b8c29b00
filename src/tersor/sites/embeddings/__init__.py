"""The compressed all-to-all of embedding look-ups in recommendation models."""

from tersor.comm import Volume
from tersor.policy import Decay
from tersor.sites.embeddings.bounds import AdaptiveBounds
from tersor.sites.embeddings.classes import ClassBounds, Classification, TableStats, classify
from tersor.sites.embeddings.exchange import Exchange, Pending
from tersor.sites.embeddings.plan import CodecPlan
from tersor.sites.embeddings.stats import ExchangeStats

__all__ = [
    "AdaptiveBounds",
    "ClassBounds",
    "Classification",
    "CodecPlan",
    "Decay",
    "Exchange",
    "ExchangeStats",
    "Pending",
    "TableStats",
    "Volume",
    "classify",
]
