"""All-gather of one row per rank: once across nodes, then within each node."""

from __future__ import annotations

from tersor.comm import Collective, Exchange, Place
from tersor.sites.shards.hop import Hop


def gather_rows(
    sent: Hop, place: Place, row_nbytes: int, *, in_node: bool = True
) -> Exchange[list[tuple[Hop, slice]]]:
    """Send this rank's row to all ranks; return the received parts, each with the slice of ranks that sent it.

    With several nodes of several ranks, each row crosses to every other node once and is then shared within it. With 2
    nodes of 2 ranks, a ring over all ranks would send 3 rows out of each node, where 2 are enough.

    Args:
        sent: the single row of this rank.
        place: the place of this rank.
        row_nbytes: uncompressed size of a row.
        in_node: share rows within the node. If False, return only the rows of ranks with this rank's position in their
            nodes; slices then index nodes.
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
