"""The time that codecs take on a device, by which ``auto`` and exchanges choose."""

from tersor.codecs.costs.cache import CostCache
from tersor.codecs.costs.lookup import costs_on, renewed_costs_on
from tersor.codecs.costs.measuring import median_seconds
from tersor.codecs.costs.table import CodecCost, Costs

__all__ = ["CodecCost", "CostCache", "Costs", "costs_on", "median_seconds", "renewed_costs_on"]
