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


def __dir__() -> list[str]:
    """Return the public names; modules of the package have names such as ``balance``, which is a method."""
    return sorted(__all__)


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
