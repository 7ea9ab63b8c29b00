"""Torch's own methods of holding less for backward: recomputation, offloading, a compiler budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch.utils.checkpoint import checkpoint

from tersor.bench.activations.case import Case, Forward

_FP8_OPTION: Final = "activation_quantization_aten_pass"
FP8_OPTIONS: Final = {
    "quant_type": "torch.float8_e4m3fn", "use_scaling": True, "size_in_mb": 0, "exclude_primals": True,
    "allowed_dtypes": "torch.float32;torch.bfloat16;torch.float16",
}  # fmt: skip
"""By default, the pass only converts bfloat16 tensors of at least 100 MiB, without a scale."""

_MOST_COMPILATIONS: Final = 64


def recomputed(case: Case) -> Forward:
    """Return a forward pass that holds only the inputs of blocks; backward recomputes each block."""

    def forward(*batch: Any) -> torch.Tensor:
        with _checkpointed(case):
            outputs: torch.Tensor = case.model(*batch)
        return outputs

    return forward


@contextmanager
def _checkpointed(case: Case) -> Iterator[None]:
    for block in case.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in case.blocks:
            # delete the instance attribute that shadows the method of the class
            del block.forward


def offloaded(case: Case) -> Forward:
    """Return a forward pass that moves all saved tensors to pinned host memory."""

    def forward(*batch: Any) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            outputs: torch.Tensor = case.model(*batch)
        return outputs

    return forward


def compiled(case: Case, budget: float = 1.0, fp8: Mapping[str, Any] | None = None) -> Forward:
    """Return the compiled model.

    Args:
        case: the case whose model is compiled.
        budget: share of the activations that torch may hold; it recomputes the others.
        fp8: options of inductor's pass that saves activations in 8 bits; None to disable it.
    """
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx

    options = inductor_config.post_grad_fusion_options
    options = options if fp8 is None else {**options, _FP8_OPTION: dict(fp8)}

    # a new function per call, because dynamo reuses compiled code if the backend is the same
    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        with (
            functorch_config.patch(activation_memory_budget=budget),
            inductor_config.patch(post_grad_fusion_options=options),
        ):
            return compile_fx(graph, inputs)

    # full graph only: a graph break would be measured as if the model were compiled
    forward: Forward = torch.compile(case.model, backend=backend, fullgraph=True)
    return forward


def has_fp8_pass() -> bool:
    """Return whether this torch can save activations in 8 bits."""
    from torch._functorch import partitioners

    return hasattr(partitioners, "enable_activation_quantization")


@contextmanager
def many_compilations() -> Iterator[None]:
    """Let dynamo compile a model for every contender and hook state, and discard all code afterwards.

    By default, dynamo runs a model uncompiled after eight compilations.
    """
    from torch._dynamo import config

    with config.patch(recompile_limit=_MOST_COMPILATIONS):
        try:
            yield
        finally:
            torch.compiler.reset()
