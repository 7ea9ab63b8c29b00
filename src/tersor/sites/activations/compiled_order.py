"""The order of encoding and decoding in compiled graphs, which decides the peak.

torch inserts what hooks compute at the end of the forward graph and at the beginning of the backward graph, where all
saved tensors exist uncompressed at once. Inductor moves encoding forward by itself, but not decoding back: a step of a
GPT of 2 M weights on a CPU had a peak of 111 MiB with ``group4``, and 107 without compression.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import fx

_VIEWS: Final = ("view", "transpose", "permute", "reshape", "alias", "aten.t.", "detach")
_IS_PLACED: Final = "tersor_is_placed"


def place_coding(forward: fx.Graph, backward: fx.Graph) -> None:
    """Encode as early and decode as late as the rest of the graphs allows; may be called again after hooks add more."""
    for node in forward.find_nodes(op="call_function", target=torch.ops.tersor.encode.default):
        if not node.meta.get(_IS_PLACED):
            node.meta[_IS_PLACED] = True
            _encode_early(node)
    for node in backward.find_nodes(op="call_function", target=torch.ops.tersor.decode.default):
        if not node.meta.get(_IS_PLACED):
            node.meta[_IS_PLACED] = True
            _move_to_readers(node)


def _encode_early(node: fx.Node) -> None:
    """Move an encoding, and the views that only it reads, right behind the last other reader of the tensor.

    Before that, the tensor could not be freed anyway, and the payload would only exist longer.
    """
    chain, source = [node], node.args[0]
    while isinstance(source, fx.Node) and _is_view(source) and len(source.users) == 1:
        chain.insert(0, source)
        source = source.args[0]
    before = {x for one in chain for x in one.all_input_nodes} - set(chain)
    if isinstance(source, fx.Node):
        # hooks read sizes after all else, which would count as readers
        for size in [user for user in source.users if user.target is torch.ops.aten.sym_size.int]:
            source.append(size)
        before |= {user for user in source.users if user.op != "output"} - set(chain)
    last = next(one for one in reversed(node.graph.nodes) if one in before)
    if last.op != "placeholder":
        for one in reversed(chain):
            last.append(one)


def _move_to_readers(node: fx.Node) -> None:
    """Move a node, and views of its result, right before the first node that reads them."""
    for user in list(node.users):
        if _is_view(user):
            _move_to_readers(user)
    first = next((one for one in node.graph.nodes if one in node.users), None)
    if first is not None:
        first.prepend(node)


def _is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and any(part in str(node.target) for part in _VIEWS)
