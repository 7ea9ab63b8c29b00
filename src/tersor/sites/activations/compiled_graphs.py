"""Compression inside ``torch.compile``: encoding and decoding become parts of the compiled graphs.

torch inlines hooks that are ``fx.GraphModule``s into the forward and the backward graph. Both graphs must know the
size of every payload, so only codecs of fixed size are possible.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from threading import local
from typing import Any, Final, Self

import torch
from torch import fx
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tersor.codecs import Codec, registry
from tersor.errors import SpecError
from tersor.ops import GraphCodec
from tersor.sites.activations.attention import recomputed_attention
from tersor.sites.activations.compiled_order import place_coding
from tersor.sites.activations.compiled_uses import hint, tolerates_error
from tersor.sites.activations.compression import note_entered
from tersor.sites.activations.quality import check_codec
from tersor.sites.activations.watching import SEEN_THROUGH

_log = logging.getLogger("tersor")
_warned: set[str] = set()
_MIN_NBYTES: Final = 4096


class CompiledCompression:
    """A context for forward passes of compiled modules that compresses the tensors saved for backward.

    Enter it around the call of a module that ``torch.compile`` returned, with the loss outside. Floating-point
    tensors that only the compiled code holds are encoded if every operator that uses them in backward tolerates an
    error, as in ``activations.compressed``; small ones and statistics are not. Attention saves only q, k, v and an
    exact mask. With a torch that does not show its graphs to hooks everything stays exact, and a warning says so.

    Args:
        codec: id of a codec of fixed size, ``group4`` by default, or a codec object.
        **options: options of the codec, if it is given by its id.

    Raises:
        SpecError: the codec's payloads vary in size with the values, or options are given with a codec object.
        UnknownCodecError: there is no such codec.
    """

    def __init__(self, codec: str | Codec = "group4", **options: Any) -> None:
        """Create the hooks."""
        check_codec(codec, "compiled")
        if isinstance(codec, Codec) and options:
            raise SpecError("a codec object has its own options; leave others out")
        if not isinstance(codec, Codec):
            _refuse_steering(registry.get(codec), options)
        chosen = codec if isinstance(codec, Codec) else registry.create(codec, **options)
        if chosen.size_kind != "fixed":
            raise SpecError(
                f"the payloads of codec {chosen.codec_id!r} vary in size, which torch.compile cannot plan for in "
                "two graphs; take one of fixed size (group4, group8, mask4, mask2, group2, fp8, bf16, half), or compress without compiling"
            )
        self._codec = GraphCodec(chosen)
        self._pack = _graph_module(self._pack_saved)
        self._unpack = _graph_module(self._unpack_saved)
        self._thread_state = local()
        self._is_traced = self._sees_eager = False

    def __repr__(self) -> str:
        """Return the codec."""
        return f"CompiledCompression({self._codec.codec!r})"

    def __enter__(self) -> Self:
        """Compress what compiled code saves from here on, unless gradients are disabled."""
        note_entered(self)
        with ExitStack() as stack:
            if torch.is_grad_enabled():
                stack.enter_context(saved_tensors_hooks(self._pack, self._unpack))
                stack.enter_context(_ReplacedAttention())
            self._open().append(stack.pop_all())
        return self

    def _open(self) -> list[ExitStack]:
        """Return what this thread has entered and not left yet."""
        found: list[ExitStack] = self._thread_state.__dict__.setdefault("open", [])
        return found

    def __exit__(self, *error: object) -> None:
        """Stop compressing; log once if code that is not compiled saved tensors, and no compiled code did."""
        self._open().pop().close()
        if error[0] is None and self._sees_eager and not self._is_traced:
            _warn_once(
                "eager",
                "activations.compiled compresses nothing here: the code in the context is not compiled; call what "
                "torch.compile returned, or take activations.compressed",
            )

    def __getattr__(self, name: str) -> Any:
        """Raise an error that explains why this context has no ``report`` and the like."""
        raise AttributeError(
            f"the context around compiled code has no {name!r}: nobody sees there what is saved tensor by tensor; "
            "activations.compressed, around code that is not compiled, has it"
        )

    def _pack_saved(self, x: torch.Tensor) -> tuple[Any, ...]:
        if type(x) in (torch.Tensor, torch.nn.Parameter):
            # Not traced, so saved by a function that is not compiled. Its weights arrive here as well.
            self._sees_eager |= x.grad_fn is not None and x.nbytes >= _MIN_NBYTES
            return (x.detach(),)
        self._is_traced = True
        context = _hook_context()
        if context is not None and "_fw_graph" in context:
            # what hooks inserted for the tensors before this one; the last one may stay where torch puts it, as it is
            # usually the last to be saved and the first to be needed
            place_coding(context["_fw_graph"], context["_bw_graph"])
        if not self._is_lossy(x):
            return (x,)
        # the backward graph is compiled for the tensor's order of dimensions in memory
        order = sorted(range(x.dim()), key=lambda k: -hint(x.stride(k)))
        y = x.permute(order)
        return (
            self._codec.encode(y),
            y.size(),
            y.dtype,
            tuple(order.index(k) for k in range(x.dim())),
        )

    def _unpack_saved(self, packed: tuple[Any, ...]) -> torch.Tensor:
        if len(packed) == 1:
            return packed[0]  # type: ignore[no-any-return]
        payload, shape, dtype, back = packed
        return self._codec.decode(payload, shape, dtype).permute(back)

    def _is_lossy(self, x: torch.Tensor) -> bool:
        """True if a tensor may have an error, by what is known at compile time: dtype, shape and its uses."""
        if not x.is_floating_point() or x.dim() < 2 or x.shape[-1] == 1:
            return False
        if not self._codec.codec.supports(x.dtype):
            return False
        if hint(x.numel()) * x.itemsize < _MIN_NBYTES:
            return False
        context = _hook_context()
        if context is None:
            _warn_once(
                "graphs",
                "activations.compiled compresses nothing here: this torch does not show its graphs to hooks, and so not what "
                "tolerates an error; take the torch that tersor was tested with",
            )
            return False
        return tolerates_error(context["_node"], context["_bw_graph"])


class _ReplacedAttention(TorchFunctionMode):
    """Replaces attention by ``recomputed_attention``, which saves only q, k and v."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.unflatten:
            # the only tensor method written in Python that dynamo cannot trace under a mode
            return torch.unflatten(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            with self:
                return SEEN_THROUGH[func](*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return recomputed_attention(*args, **kwargs)
        return func(*args, **kwargs)


def _refuse_steering(kind: type[Codec], options: Mapping[str, Any]) -> None:
    """Raise ``SpecError`` for an option of ``Compression`` that a codec of this kind does not have."""
    steering = {"step", "target_score", "budget_bytes", "every"} & options.keys()
    odd = sorted(steering - set(kind.option_names()))
    if odd:
        raise SpecError(
            f"nothing is steered inside compiled graphs; leave {odd[0]} out, or take activations.compressed around code "
            "that is not compiled"
        )


def _warn_once(kind: str, sentence: str) -> None:
    """Log a sentence, once for each kind."""
    if kind not in _warned:
        _warned.add(kind)
        _log.warning(sentence)


def _graph_module(function: Any) -> fx.GraphModule:
    """Return a graph that calls ``function``; torch inlines it for every saved tensor."""
    graph = fx.Graph()
    graph.output(graph.call_function(function, (graph.placeholder("x"),)))
    return fx.GraphModule({}, graph)


def _hook_context() -> Mapping[str, Any] | None:
    """Return both graphs and the node of the tensor being packed; None if this version of torch does not expose them."""
    from torch._functorch._aot_autograd import graph_compile

    ask = getattr(graph_compile, "_get_saved_tensor_hook_context", None)
    found: Mapping[str, Any] | None = None if ask is None else ask()
    return found
