"""Attention that saves only q, k and v.

Fused attention also saves its output and the log-sum-exp of its scores. If q and k are decoded with an error, an
exact log-sum-exp gives probabilities that do not sum to one: a GPT of 10 M parameters ended at a loss of 3.43 instead
of 1.62 (decision 17). Here backward recomputes both from the decoded q, k and v, so all of them are consistent.

``torch.ops.tersor.attention`` and its backward are operators that are opaque to a compiler. In a traced graph it would
merge the second computation with the first. Code that is not traced takes a faster function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tersor.sites.activations.autocast import autocast_disabled

_BACKENDS: Final[tuple[tuple[SDPBackend, Callable[[], bool]], ...]] = (
    (SDPBackend.FLASH_ATTENTION, torch.backends.cuda.flash_sdp_enabled),
    (SDPBackend.EFFICIENT_ATTENTION, torch.backends.cuda.mem_efficient_sdp_enabled),
    (SDPBackend.MATH, torch.backends.cuda.math_sdp_enabled),
    (SDPBackend.CUDNN_ATTENTION, torch.backends.cuda.cudnn_sdp_enabled),
)
_CPU_STATE_NBYTES: Final = torch.get_rng_state().numel()
_CUDA_STATE_NBYTES: Final = 16
"""Seed and offset."""
_ARGUMENTS: Final = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, "
    "float? scale, bool enable_gqa"
)


def recomputed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute ``scaled_dot_product_attention``, and save only its arguments for backward."""
    device_type = query.device.type
    options = dropout_p, is_causal, scale, enable_gqa
    if torch.is_autocast_enabled(device_type):
        # cast as autocast would inside the operator; backward runs without autocast
        dtype = torch.get_autocast_dtype(device_type)
        query, key, value = (x.to(dtype) for x in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    with autocast_disabled(device_type):
        return _computed(query, key, value, attn_mask, *options)


def _computed(*arguments: Any) -> torch.Tensor:
    """Compute attention, by an opaque operator if it is being traced."""
    out: torch.Tensor
    if torch.compiler.is_compiling():
        out, _ = _ATTENTION(*arguments)
    else:
        out = _Attention.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    *options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and a tensor in main memory with what backward needs to recompute it: see ``_state``."""
    state = _state(query.device, options[0])
    return _scaled(query, key, value, attn_mask, options), state


def _attention_backward(
    gradient: torch.Tensor,
    state: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    *options_and_need: Any,
) -> list[torch.Tensor]:
    """Return what ``_gradients`` does, zeros for None, each with the layout of its tensor."""
    inputs = _differentiable(query, key, value, attn_mask, options_and_need[-1])
    gradients = _gradients(gradient, state, query, key, value, attn_mask, *options_and_need)
    return [_like(x, found) for x, found in zip(inputs, gradients, strict=True)]


def _gradients(
    gradient: torch.Tensor,
    state: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    *options_and_need: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of q, k, v and, if it needs one, of the mask."""
    *options, needs_mask = options_and_need
    inputs = _differentiable(query, key, value, attn_mask, needs_mask)
    with (
        autocast_disabled(query.device.type),
        _forward_rng(state, query.device, options[0]),
        _allowed_backends(int(state[0])),
        _autograd_enabled(),
    ):
        leaves = [x.detach().requires_grad_() for x in inputs]
        mask = leaves[3] if len(leaves) > 3 else attn_mask
        out = _scaled(leaves[0], leaves[1], leaves[2], mask, tuple(options))
        return torch.autograd.grad(out, leaves, gradient, allow_unused=True)


def _scaled(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: tuple[Any, ...],
) -> torch.Tensor:
    dropout_p, is_causal, scale, enable_gqa = options
    return functional.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _like(x: torch.Tensor, found: torch.Tensor | None) -> torch.Tensor:
    """Return a gradient in the layout that ``_backward_fake`` promised to the compiler; zeros for None."""
    out = torch.empty_like(x)
    if found is None:
        return out.zero_()
    return found if found.stride() == out.stride() else out.copy_(found)


def _differentiable(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    needs_mask: bool,
) -> list[torch.Tensor]:
    # differentiate the mask only if needed: a mask that requires a gradient rules out fused backends
    return [query, key, value, *([mask] if mask is not None and needs_mask else [])]


def _backward_fake(gradient: Any, state: Any, *inputs: Any) -> list[torch.Tensor]:
    del gradient, state
    query, key, value, mask, *_, needs_mask = inputs
    return [torch.empty_like(x) for x in _differentiable(query, key, value, mask, needs_mask)]


def _fake(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Trace torch's own operator for the output: its strides differ between devices and backends."""
    query, key, value, mask, *options = inputs
    out = _scaled(query, key, value, mask, tuple(options))
    is_cuda, has_dropout = query.device.type == "cuda", options[0] > 0
    length = 1 + (_CUDA_STATE_NBYTES if is_cuda else _CPU_STATE_NBYTES) * has_dropout
    return out, torch.empty(length, dtype=torch.uint8, device="cpu")


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], output[1])
    ctx.options = inputs[4:]


def _differentiate(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
    *tensors, state = ctx.saved_tensors
    needs_mask = ctx.needs_input_grad[3]
    found = _ATTENTION_BACKWARD(gradient, state, *tensors, *ctx.options, needs_mask)
    return _padded(found, ctx.options)


def _padded(found: Sequence[torch.Tensor | None], options: Sequence[Any]) -> tuple[Any, ...]:
    """Return one gradient per argument: None for a mask without one, and for the options."""
    return (*found, *[None] * (4 - len(found)), *[None] * len(options))


class _Attention(torch.autograd.Function):
    """``torch.ops.tersor.attention`` for code that is not traced.

    The operator's dispatch through Python takes the host 80 us more for forward and backward, in a loop of nothing else.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        *options: Any,
    ) -> torch.Tensor:
        """Compute the output, and save the arguments."""
        ctx.save_for_backward(query, key, value, attn_mask)
        ctx.options, ctx.state = options, _state(query.device, options[0])
        return _scaled(query, key, value, attn_mask, options)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of q, k, v and the mask."""
        arguments = (*ctx.saved_tensors, *ctx.options, ctx.needs_input_grad[3])
        # with ``create_graph``, the operator makes gradients that refuse to be differentiated
        differentiate = _ATTENTION_BACKWARD if torch.is_grad_enabled() else _gradients
        return _padded(differentiate(gradient, ctx.state, *arguments), ctx.options)


def _refuse_second_derivative(ctx: Any, *gradients: Any) -> Any:
    del ctx, gradients
    raise RuntimeError(
        "attention inside activations.compressed has no second derivative; compute what you differentiate twice outside "
        "of the context"
    )


def _state(device: torch.device, dropout_p: float) -> torch.Tensor:
    """Return a byte with one bit per allowed backend, followed by the generator's state if dropout uses it."""
    are_on: list[bool] = [is_on() for _, is_on in _BACKENDS]
    backends = sum(1 << k for k, is_on in enumerate(are_on) if is_on)
    allowed = torch.tensor([backends], dtype=torch.uint8, device="cpu")
    if not dropout_p:
        return allowed
    # the seed and offset of a GPU's generator are in main memory: reading them does not wait for the device
    is_cuda = device.type == "cuda"
    state = torch.cuda.get_rng_state(device) if is_cuda else torch.get_rng_state()
    return torch.cat([allowed, state])


@contextmanager
def _forward_rng(state: torch.Tensor, device: torch.device, dropout_p: float) -> Iterator[None]:
    """Restore the random state of the forward pass, so that dropout drops the same values."""
    if not dropout_p:
        yield
        return
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if is_cuda else []):
        # set_rng_state does not accept a view
        generator = state[1:].clone()
        if is_cuda:
            torch.cuda.set_rng_state(generator, device)
        else:
            torch.set_rng_state(generator)
        yield


@contextmanager
def _allowed_backends(backends: int) -> Iterator[None]:
    """Restrict torch to the backends that were allowed in the forward pass."""
    allowed = [backend for k, (backend, _) in enumerate(_BACKENDS) if backends >> k & 1]
    if len(allowed) == len(_BACKENDS):
        yield
        return
    with sdpa_kernel(allowed):
        yield


@contextmanager
def _autograd_enabled() -> Iterator[None]:
    """Enable autograd inside an operator, where torch disables it, and shield it from the caller's hooks."""
    included = torch._C._dispatch_tls_local_include_set()  # noqa: SLF001 - no public way
    excluded = torch._C._dispatch_tls_local_exclude_set()  # noqa: SLF001
    key = torch._C.DispatchKey.AutogradFunctionality  # noqa: SLF001
    autograd = torch._C.DispatchKeySet(key)  # noqa: SLF001
    with (
        torch._C._ForceDispatchKeyGuard(included, excluded - autograd),  # noqa: SLF001
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, torch.Tensor.detach),
    ):
        yield


_ATTENTION: Final = torch.library.custom_op(
    "tersor::attention",
    _attention,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)",
)
_ATTENTION_BACKWARD: Final = torch.library.custom_op(
    "tersor::attention_backward",
    _attention_backward,
    mutates_args=(),
    schema=f"(Tensor gradient, Tensor state, {_ARGUMENTS}, bool needs_mask) -> Tensor[]",
)
torch.library.register_fake("tersor::attention", _fake)
torch.library.register_fake("tersor::attention_backward", _backward_fake)
torch.library.register_autograd("tersor::attention", _differentiate, setup_context=_save)
torch.library.register_autograd("tersor::attention_backward", _refuse_second_derivative)
