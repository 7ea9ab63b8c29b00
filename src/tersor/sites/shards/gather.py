"""All-gather of one row per rank: across nodes once, then shared within each node."""

from __future__ import annotations

from tersor.comm import Collective, Exchange, Place
from tersor.sites.shards.hop import Hop


def gather_rows(
    sent: Hop, place: Place, row_nbytes: int, *, in_node: bool = True
) -> Exchange[list[tuple[Hop, slice]]]:
    """Send this rank's row to all ranks; return what they sent, each part with the ranks it is of.

    On two levels rows cross to every other node once, and are shared within it: with 2 nodes of 2 ranks a
    ring over all ranks would send 3 rows out of each node, where 2 do.

    Args:
        sent: the one row of this rank.
        place: of this rank.
        row_nbytes: of a row that is not encoded.
        in_node: share rows within the node. False: return only those of the ranks that have this rank's
            place in their nodes; slices then count nodes.
    """
    num_nodes, num_local = place.num_nodes, place.ranks_per_node
    whole_nbytes = place.world_size * row_nbytes
    if not place.is_two_level:
        flat = sent.with_peers(place.world_size)
        yield Collective("all_gather", "all", flat.buffer, sent.buffer, whole_nbytes)
        return [(flat, slice(None))]
    across = sent.with_peers(num_nodes)
    yield Collective("all_gather", "across", across.buffer, sent.buffer, num_nodes * row_nbytes)
    if not in_node:
        return [(across, slice(None))]
    every = sent.with_peers(place.world_size)
    yield Collective("all_gather", "node", every.buffer, across.buffer, whole_nbytes)
    return [
        (every.of_peers(k * num_nodes, (k + 1) * num_nodes), slice(k, None, num_local))
        for k in range(num_local)
    ]
