"""Lookup of the costs of a device: cached, shipped, or measured on first use."""

from __future__ import annotations

import logging
from dataclasses import replace
from threading import Lock
from typing import Final

import torch

from tersor.codecs.costs.cache import CostCache
from tersor.codecs.costs.measuring import measure_costs
from tersor.codecs.costs.shipped import CPU, H200, SHIPPED
from tersor.codecs.costs.table import Costs
from tersor.errors import BackendUnavailableError, SpecError, TersorError
from tersor.kernels.runtime.op import backend_for
from tersor.kernels.runtime.threads import is_forked

_log = logging.getLogger("tersor")
ASSUMED: Final = replace(H200, source="assumed")
_known: dict[str, Costs] = {}
_one_at_a_time = Lock()


def costs_on(device: torch.device) -> Costs:
    """Return the costs of codecs on a device.

    For a GPU, these are the costs measured earlier on this machine, or else those shipped for its model. If there are
    neither, the GPU is measured once, which is logged, and the result is cached on disk. The costs of an H200 are
    assumed if measuring fails. They are also assumed, for the one call, where measuring is impossible: while a CUDA
    graph is captured, and in a forked child.

    Raises:
        BackendUnavailableError: torch finds no GPU.
    """
    if backend_for(device) != "gpu":
        return CPU
    if device.type != "cuda":
        # Triton's interpreter
        return ASSUMED
    try:
        name = torch.cuda.get_device_name(device)
    except (AssertionError, RuntimeError) as error:
        if torch.cuda.is_available():
            raise
        raise BackendUnavailableError(f"torch finds no device {str(device)!r} here") from error
    if name not in _known:
        found = CostCache.of_user().load(name) or SHIPPED.get(name)
        if found is None:
            if is_forked() or torch.cuda.is_current_stream_capturing():
                return ASSUMED
            return _measured_once(device, name)
        _known[name] = found
    return _known[name]


def renewed_costs_on(device: torch.device) -> Costs:
    """Measure the costs of a GPU, and replace the cached ones.

    Raises:
        SpecError: the device is not a GPU.
    """
    if device.type != "cuda":
        raise SpecError("only costs of a GPU are measured; those of a CPU are shipped")
    name = torch.cuda.get_device_name(device)
    with torch.cuda.device(device):
        costs = measure_costs(device, name)
    CostCache.of_user().store(costs)
    _known[name] = costs
    return costs


def _measured_once(device: torch.device, name: str) -> Costs:
    """Measure the costs of a GPU once per process; return those of an H200 if that fails."""
    with _one_at_a_time:
        if name in _known:
            # another thread measured meanwhile
            return _known[name]
        _log.info("measuring how fast codecs are on %s, once for this machine", name)
        try:
            return renewed_costs_on(device)
        # most likely too little memory: choosing by another GPU's costs is better than failing
        except (RuntimeError, MemoryError, OSError, TersorError) as error:
            _log.warning(
                "codecs could not be measured on %s (%s); 'auto' goes by the costs of %s",
                name, error, ASSUMED.device,
            )  # fmt: skip
            return _known.setdefault(name, ASSUMED)
