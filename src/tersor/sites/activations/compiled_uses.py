"""Whether a tensor saved by compiled code may have an error, by the operators that use it in the backward graph.

The rule is that of code that is not compiled (``calls.py``): only what every use tolerates is lossy, and what is
unknown is exact. Uses are followed through views, copies, casts and everything else that is computed from the tensor
before it meets a gradient.

A backend may have decomposed an operator: the backward of a norm into products, GELU into ``erf`` and ``exp``. torch
notes at each node which operator it is a part of. The ``exp`` in a GELU is therefore tolerated, and any other is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import fx

from tersor.sites.activations.calls import SMALL_FACTOR

_VIEWS: Final = frozenset(
    {
        "view", "_unsafe_view", "reshape", "transpose", "permute", "t", "getitem", "expand", "alias", "detach", "select",
        "slice", "squeeze", "unsqueeze", "split", "split_with_sizes", "chunk", "unbind", "as_strided", "lift_fresh_copy",
        "clone", "contiguous", "_to_copy", "convert_element_type", "cat",
    }
)  # fmt: skip
"""Views, copies and casts."""

_SWAPS: Final = frozenset({"t", "transpose", "permute"})
_SHAPES: Final = frozenset({"sym_size", "sym_stride", "sym_numel", "sym_storage_offset"})

_POINTWISE: Final = frozenset(
    {
        "gelu", "silu", "mish", "leaky_relu", "elu", "hardswish", "hardsigmoid", "softplus", "relu",
        "threshold", "tanh", "sigmoid", "glu", "_prelu_kernel",
    }
)  # fmt: skip
_NORMS: Final = frozenset(
    {
        "native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm", "batch_norm",
        "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_batch_norm_with_update_functional",
        "cudnn_batch_norm", "miopen_batch_norm",
    }
)  # fmt: skip

_TOLERATED: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys((f"{name}_backward" for name in _POINTWISE | _NORMS), (1,)),
    **dict.fromkeys(_POINTWISE, (0,)),
    "elu_backward": (5,),
    "cudnn_batch_norm_backward": (0,),
    "miopen_batch_norm_backward": (0,),
    "convolution_backward": (1,),
    "max_pool2d_with_indices_backward": (1,),
    "max_pool3d_with_indices_backward": (1,),
    "avg_pool2d_backward": (1,),
    "avg_pool3d_backward": (1,),
    "_adaptive_avg_pool2d_backward": (1,),
    "_adaptive_avg_pool3d_backward": (1,),
    "attention_backward": (2, 3, 4),
    "mm": (0, 1),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "mul": (0, 1),
    "add": (0, 1),
    "sub": (0, 1),
    "div": (0,),
    "neg": (0,),
    "pow": (0,),
}
"""The arguments of operators that may have an error: inputs, not weights, statistics and masks."""

_IN_A_NORM: Final = frozenset({"mul", "sub", "add"})
"""What a decomposed norm computes with its input; all else computes statistics."""

_BACKWARD_OF_RESULT: Final = frozenset(
    {"exp", "exp2", "expm1", "reciprocal", "rsqrt", "sqrt", "prod", "cumprod", "_softmax", "_log_softmax"}
)  # fmt: skip
"""Operators whose backward multiplies by their own result, which looks like the backward of a product."""

_IS_GRADIENT: Final = "tersor_is_gradient"


def hint(size: Any) -> int:
    """Return the value that a symbolic size had at compile time, without specialising the graph to it; 4096 if unknown."""
    return int(size if isinstance(size, int) else size.node.hint or 4096)


def tolerates_error(saved: fx.Node, backward: fx.Graph) -> bool:
    """True if each use of a saved tensor in backward tolerates an error, and gradients flow to the tensor.

    Args:
        saved: the node of a floating-point tensor in the forward graph.
        backward: the backward graph, in which a placeholder has the same name.
    """
    if _is_statistic(saved) or _is_constant(saved, backward):
        return False
    _mark_gradients(backward)
    places = [x for x in backward.find_nodes(op="placeholder") if x.name == saved.name]
    return bool(places) and all(map(_uses_tolerate, places))


def _uses_tolerate(node: fx.Node) -> bool:
    """True if all uses of a node tolerate an error in it. What follows a product with a gradient is linear."""
    # with the number of elements before a tensor was expanded
    left, seen = [(node, _numel(node))], set()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        value, numel = one
        for user in value.users:
            is_view = _name(user) in _VIEWS
            if user.op != "call_function" or not (is_view or _tolerates(user, value, numel)):
                return False
            if not _is_gradient(user):
                left.append((user, min(numel, _numel(user)) if is_view else _numel(user)))
    return True


def _tolerates(user: fx.Node, node: fx.Node, numel: int) -> bool:
    """True if one operator tolerates an error in one of its arguments."""
    name, part_of = _name(user), _origin(user)
    if name in _SHAPES:
        return True
    is_small = numel * SMALL_FACTOR <= _numel(user)
    if name != part_of:
        function = part_of.removesuffix("_backward")
        return function in _POINTWISE or (
            function in _NORMS and name in _IN_A_NORM and not is_small
        )
    places = {k for k, x in enumerate(user.args) if x is node}
    # of a ReLU the threshold is 0; an error moves values across any other
    is_clamp = name == "threshold_backward" and user.args[2] != 0
    if (
        is_clamp
        or not places
        or not places <= set(_TOLERATED.get(name, ()))
        or node in user.kwargs.values()
    ):
        return False
    if name == "mul":
        return not is_small
    if name == "mm":
        return _is_for_weight(user, node)
    is_divided_by_constant = name != "div" or not isinstance(user.args[1], fx.Node)
    return is_divided_by_constant and (name != "pow" or _is_in_mean_square(user))


def _is_for_weight(product: fx.Node, node: fx.Node) -> bool:
    """True if a matrix product sums over the rows of a gradient, so the other factor is the input of a layer.

    A sum over the columns is the gradient that flows on, and the other factor is a weight.
    """
    first, second = product.args[0], product.args[1]
    gradient = second if first is node else first
    if not isinstance(gradient, fx.Node) or not _is_gradient(gradient):
        return False
    is_transposed = False
    while _name(gradient) in _SWAPS and _dim(gradient) == 2:
        is_transposed ^= bool(gradient.args[1:] != ([0, 1],))
        gradient = gradient.all_input_nodes[0]
    return bool(is_transposed) == (node is second)


def _is_in_mean_square(power: fx.Node) -> bool:
    """True if a power is of a mean of squares, as in a decomposed rms norm: rows have a common gradient."""
    exponent = power.args[1]
    if not isinstance(exponent, (int, float)) or exponent < 1:
        return False
    return all(_meets_common_gradient(user, power) for user in power.users)


def _meets_common_gradient(product: fx.Node, factor: fx.Node) -> bool:
    if _name(product) != "mul":
        return False
    others = [x for x in product.all_input_nodes if x is not factor]
    if not others:
        return all(_meets_common_gradient(user, product) for user in product.users)
    other = _source(others[0])
    while _name(other) in ("mul", "div") and len(other.all_input_nodes) == 1:
        other = _source(other.all_input_nodes[0])
    return _numel(other) * SMALL_FACTOR <= _numel(product)


def _is_statistic(node: fx.Node) -> bool:
    """True if a tensor of the forward graph was made by an operator that needs its own result exactly."""
    node = _source(node)
    if _name(node) == "getitem":
        (parent,) = node.all_input_nodes
        is_output = _name(parent) in _NORMS and node.args[1:] == (0,)
        return _origin(parent) in _NORMS and not is_output
    if _origin(node) in _NORMS:
        return _name(node) not in _IN_A_NORM | _NORMS
    return _origin(node) in _BACKWARD_OF_RESULT


def _is_constant(node: fx.Node, backward: fx.Graph) -> bool:
    """True if no gradient flows to a tensor of the forward graph: no input that has one in backward leads to it."""
    inputs = node.graph.find_nodes(op="placeholder")
    (output,) = backward.find_nodes(op="output")
    with_gradient = {x for x, g in zip(inputs, output.args[0], strict=False) if g is not None}
    seen: set[fx.Node] = set()
    left = [node]
    while left:
        one = left.pop()
        value = one.meta.get("val")
        carries_no_gradient = isinstance(value, torch.Tensor) and not value.is_floating_point()
        if one in seen or carries_no_gradient:
            continue
        if one in with_gradient:
            return False
        seen.add(one)
        left += one.all_input_nodes
    return True


def _mark_gradients(backward: fx.Graph) -> None:
    """Mark all nodes that depend on the gradients that the backward graph is given, once per graph."""
    given = [x for x in backward.find_nodes(op="placeholder") if x.name.startswith("tangents")]
    if all(_is_gradient(x) for x in given):
        return
    for node in backward.nodes:
        node.meta[_IS_GRADIENT] = node in given or any(map(_is_gradient, node.all_input_nodes))


def _is_gradient(node: fx.Node) -> bool:
    # nodes that hooks add later have no mark: they decode
    return bool(node.meta.get(_IS_GRADIENT))


def _source(node: fx.Node) -> fx.Node:
    """Return what a node is a view, a copy or a cast of."""
    while _name(node) in _VIEWS - {"getitem", "cat"} and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _name(node: fx.Node) -> str:
    return _name_of(node.target)


def _origin(node: fx.Node) -> str:
    """Return the name of the operator that a node was decomposed from; its own otherwise."""
    return _name_of(node.meta.get("original_aten") or node.target)


def _name_of(target: Any) -> str:
    target = getattr(target, "overloadpacket", target)
    return str(getattr(target, "__name__", target))


def _values(node: fx.Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val")
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(one, torch.Tensor):
            yield one


def _numel(node: fx.Node) -> int:
    """Return the number of elements of a node's tensor, of its largest if it has several."""
    return max((hint(x.numel()) for x in _values(node)), default=1)


def _dim(node: fx.Node) -> int:
    return max((x.dim() for x in _values(node)), default=0)
