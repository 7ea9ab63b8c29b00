"""The contents of TorchRec's all-to-alls: which columns of which table go between which ranks.

TorchRec passes its codecs one flat tensor, ordered by destination. The part for one destination is a matrix
``[samples, sum of widths]`` with one block of columns per feature of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from tersor.errors import SpecError


class Block(NamedTuple):
    """A block of columns of one table: the table's number and the block's width."""

    table: int
    width: int


Blocks = tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """One direction of one all-to-all, from the point of view of one rank.

    Attributes:
        outgoing: blocks to send to each rank.
        incoming: blocks to receive from each rank.
        receives_first: True if TorchRec queries receive sizes before send sizes.
    """

    outgoing: tuple[Blocks, ...]
    incoming: tuple[Blocks, ...]
    receives_first: bool = True

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.outgoing)

    def chunks(self, flat: torch.Tensor, lengths: Sequence[int]) -> list[list[torch.Tensor]]:
        """Split outgoing values, ``lengths`` per destination, into one view per block."""
        parts = flat.split(list(lengths))
        return [
            list(part.view(-1, row_width(blocks)).split([block.width for block in blocks], 1))
            if blocks
            else []
            for part, blocks in zip(parts, self.outgoing, strict=True)
        ]

    def fits(self, num_values: int, send: Sequence[int], receive: Sequence[int]) -> bool:
        """True if the numbers of values to send and receive are consistent with the blocks."""
        return sum(send) == num_values and all(
            length % row_width(blocks) == 0 if blocks else length == 0
            for lengths, peers in ((send, self.outgoing), (receive, self.incoming))
            for length, blocks in zip(lengths, peers, strict=True)
        )

    def rows(self, receive: Sequence[int]) -> list[list[int]]:
        """Return the number of rows of each block to receive, per rank."""
        return [
            [length // row_width(blocks)] * len(blocks) if blocks else []
            for length, blocks in zip(receive, self.incoming, strict=True)
        ]


def row_width(blocks: Sequence[Block]) -> int:
    """Return the total width of the blocks."""
    return sum(block.width for block in blocks)


def pooled_routes(blocks: Sequence[Blocks], rank: int) -> tuple[Route, Route]:
    """Return the routes of pooled rows and of their gradients, given the blocks of every rank."""
    own, every = (blocks[rank],) * len(blocks), tuple(blocks)
    return Route(own, every), Route(every, own, receives_first=False)


def sequence_routes(
    blocks: Sequence[Blocks], rank: int, bound: Callable[[int], float]
) -> tuple[Route, Route]:
    """Return the routes of sequences and of their gradients.

    The rows of all tables of a rank are sent as one block, attributed to the table with the smallest ``bound``, because
    TorchRec does not pass the number of rows per table to codecs.

    Raises:
        SpecError: the tables differ in width.
    """
    widths = {block.width for peer in blocks for block in peer}
    if len(widths) > 1:
        raise SpecError(
            f"sequences of rows of {sorted(widths)} values cannot share an exchange; shard them so "
            "that all are as wide, or give the sharder no codecs"
        )
    merged = [(min(peer, key=lambda block: bound(block.table)),) if peer else () for peer in blocks]
    forward, backward = pooled_routes(merged, rank)
    return forward, replace(backward, receives_first=True)


def blocks_of(sharding: Any, numbers: dict[str, int]) -> list[Blocks]:
    """Return the blocks of every rank in one of TorchRec's shardings, in the order in which rows are laid out.

    Raises:
        SpecError: a table has no number.
    """
    found = []
    for groups in sharding._grouped_embedding_configs_per_rank:  # noqa: SLF001 - nothing public has it
        tables = [table for group in groups for table in group.embedding_tables]
        for table in tables:
            if table.name not in numbers:
                raise SpecError(
                    f"table {table.name!r} of the model was not given to torchrec_codecs; give it "
                    "all tables"
                )
        found.append(
            tuple(
                Block(numbers[table.name], table.local_cols)
                for table in tables
                for _ in range(table.num_features())
            )
        )
    return found
