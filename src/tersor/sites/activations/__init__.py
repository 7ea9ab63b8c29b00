"""Tensors saved for backward, smaller until it comes.

``with compressed(...)`` around the forward pass, or ``wrap(model, rules)``; ``with compiled(...)`` around one that
``torch.compile`` made.
"""

from tersor.sites.activations.compiled_graphs import CompiledCompression
from tersor.sites.activations.compression import Compression, report
from tersor.sites.activations.report import ActivationReport
from tersor.sites.activations.wrapping import unwrap, wrap

compressed = Compression
compiled = CompiledCompression

__all__ = [
    "ActivationReport",
    "CompiledCompression",
    "Compression",
    "compiled",
    "compressed",
    "report",
    "unwrap",
    "wrap",
]
