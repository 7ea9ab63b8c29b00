"""Compression of the tensors that autograd saves for backward.

Use ``with compressed(...)`` around the forward pass, or ``wrap(model, rules)``, and ``with compiled(...)`` around a
module compiled by ``torch.compile``.
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
