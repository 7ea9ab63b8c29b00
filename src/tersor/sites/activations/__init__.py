"""Tensors saved for backward, smaller until it comes.

``with compressed(...)`` around the forward pass, or ``wrap(model, rules)``; ``compiled(...)`` around a compiled one.
"""

from tersor.sites.activations.compression import Compression, report
from tersor.sites.activations.report import ActivationReport
from tersor.sites.activations.wrapping import unwrap, wrap

compressed = Compression

__all__ = ["ActivationReport", "Compression", "compressed", "report", "unwrap", "wrap"]
