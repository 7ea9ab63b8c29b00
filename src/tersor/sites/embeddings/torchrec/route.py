"""What TorchRec puts into an all-to-all: which columns of which table go from where to where.

TorchRec hands its codecs one flat tensor, ordered by destination; what goes to one destination are rows
of ``[samples, sum of widths]``, one block of columns per feature of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from tersor.errors import SpecError


class Block(NamedTuple):
    """Columns of one table: its number and their width."""

    table: int
    width: int


Blocks = tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """One direction of one all-to-all, as one rank sees it.

    Attributes:
        outgoing: what goes to each rank.
        incoming: what comes from each rank.
        receives_first: TorchRec asks for the sizes of what comes before those of what goes.
    """

    outgoing: tuple[Blocks, ...]
    incoming: tuple[Blocks, ...]
    receives_first: bool = True

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.outgoing)

    def chunks(self, flat: torch.Tensor, lengths: Sequence[int]) -> list[list[torch.Tensor]]:
        """Cut what goes out, ``lengths`` values per destination, into one view per block."""
        parts = flat.split(list(lengths))
        return [
            list(part.view(-1, row_width(blocks)).split([block.width for block in blocks], 1))
            if blocks
            else []
            for part, blocks in zip(parts, self.outgoing, strict=True)
        ]

    def fits(self, num_values: int, send: Sequence[int], receive: Sequence[int]) -> bool:
        """True if so many values can go to and come from each rank."""
        return sum(send) == num_values and all(
            length % row_width(blocks) == 0 if blocks else length == 0
            for lengths, peers in ((send, self.outgoing), (receive, self.incoming))
            for length, blocks in zip(lengths, peers, strict=True)
        )

    def rows(self, receive: Sequence[int]) -> list[list[int]]:
        """Return the rows of each block that comes from each rank."""
        return [
            [length // row_width(blocks)] * len(blocks) if blocks else []
            for length, blocks in zip(receive, self.incoming, strict=True)
        ]


def row_width(blocks: Sequence[Block]) -> int:
    """Return the values of one row of all blocks."""
    return sum(block.width for block in blocks)


def pooled_routes(blocks: Sequence[Blocks], rank: int) -> tuple[Route, Route]:
    """Return the ways of pooled rows and of their gradients, given the blocks of every rank."""
    own, every = (blocks[rank],) * len(blocks), tuple(blocks)
    return Route(own, every), Route(every, own, receives_first=False)


def sequence_routes(
    blocks: Sequence[Blocks], rank: int, bound: Callable[[int], float]
) -> tuple[Route, Route]:
    """Return the ways of sequences and of their gradients.

    Rows of all tables of a rank travel in one block, as rows of the table with the smallest ``bound``:
    how many of them are of which table is nothing that a codec is told.

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
    """Return the blocks of every rank of one of TorchRec's shardings, in the order of its rows.

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
