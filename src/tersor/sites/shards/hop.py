"""The buffer of one collective: the rows of each peer, coded or uncompressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from tersor.division import ceil_div
from tersor.kernels.group import (
    group_dequantize,
    group_dequantize_sum_quantize,
    group_quantize,
)
from tersor.kernels.group.layout import SCALE_NBYTES, payload_nbytes
from tersor.kernels.transform.reference import ORDER
from tersor.sites.shards.options import CODED_BITS


class Hop(Protocol):
    """A buffer of [num_peers, num_rows, size] values in the form in which they are sent.

    ``read_sum`` reads it as contributions of all peers to the same rows, ``read_rows`` as one distinct row per peer.
    """

    @property
    def buffer(self) -> torch.Tensor:
        """The memory, contiguous, with a part of equal size per peer."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of peers, rows per peer, and values per row."""
        ...

    def with_peers(self, num_peers: int) -> Hop:
        """Return a new buffer of the same form for ``num_peers`` peers."""
        ...

    def of_peers(self, start: int, stop: int) -> Hop:
        """Return a view of the part of the buffer that belongs to peers ``start`` to ``stop``."""
        ...

    def write(self, rows: torch.Tensor, seed: int | None, *, hadamard: bool) -> None:
        """Encode ``rows``, [num_rows, num_peers, size], which gives each peer ``num_rows`` rows."""
        ...

    def read_sum(self, out: torch.Tensor, *, hadamard: bool) -> None:
        """Write the sum over all peers to ``out``, [num_rows, size]; it is computed in float32."""
        ...

    def read_rows(self, out: torch.Tensor, *, hadamard: bool = False, add: bool = False) -> None:
        """Decode the single row of each peer to ``out``, [num_peers, size], or add it to ``out``."""
        ...


def effective_group_size(size: int, group: int) -> int:
    """Return the values per scale to use for rows of ``size`` values.

    For rows shorter than a group, the group is halved as long as the row fits. Otherwise shards of small modules would
    be mostly padding.
    """
    while group % (2 * ORDER) == 0 and group // 2 >= size:
        group //= 2
    return group


def coded_nbytes(size: int, nbits: int, group: int) -> int:
    """Return the size of a coded row in bytes: the scales and codes of whole groups.

    Example:
        >>> coded_nbytes(4096, 4, 2048), coded_nbytes(32, 8, 128)
        (2056, 36)
    """
    return payload_nbytes(size, nbits, effective_group_size(size, group))


@dataclass(frozen=True, slots=True)
class Coded:
    """Quantized values: for each peer, all scales and then all codes."""

    buffer: torch.Tensor
    scales: torch.Tensor
    data: torch.Tensor
    shape: tuple[int, int, int]
    nbits: int
    group: int

    @classmethod
    def empty(
        cls, shape: tuple[int, int, int], nbits: int, group: int, device: torch.device
    ) -> Coded:
        """Allocate a buffer for [num_peers, num_rows, size] values; see ``effective_group_size``."""
        num_peers, num_rows, size = shape
        group = effective_group_size(size, group)
        num_groups = ceil_div(size, group)
        split = SCALE_NBYTES * num_rows * num_groups
        stop = num_rows * coded_nbytes(size, nbits, group)
        # the scales of every peer are aligned to float32
        nbytes = ceil_div(stop, SCALE_NBYTES) * SCALE_NBYTES
        buffer = torch.empty(num_peers, nbytes, dtype=torch.uint8, device=device)
        scales = buffer[:, :split].view(torch.float32).unflatten(1, (num_rows, num_groups))
        data = buffer[:, split:stop].unflatten(1, (num_rows, num_groups * group * nbits // 8))
        return cls(buffer, scales, data, shape, nbits, group)

    def with_peers(self, num_peers: int) -> Coded:
        """See ``Hop``."""
        shape = num_peers, *self.shape[1:]
        return Coded.empty(shape, self.nbits, self.group, self.buffer.device)

    def of_peers(self, start: int, stop: int) -> Coded:
        """See ``Hop``."""
        own = slice(start, stop)
        parts = self.buffer[own], self.scales[own], self.data[own]
        return Coded(*parts, (stop - start, *self.shape[1:]), self.nbits, self.group)

    def write(self, rows: torch.Tensor, seed: int | None, *, hadamard: bool) -> None:
        """See ``Hop``."""
        targets = self.scales.transpose(0, 1), self.data.transpose(0, 1)
        group_quantize(rows, self.nbits, self.group, seed, hadamard, targets)

    def write_difference(self, x: torch.Tensor, base: torch.Tensor, seed: int | None) -> None:
        """Encode ``x - base`` as the only row, without materialising it."""
        targets = self.scales[0, 0], self.data[0, 0]
        group_quantize(x, self.nbits, self.group, seed, False, targets, base)

    def write_sum(self, received: Coded, seed: int | None) -> None:
        """Encode the sum of what peers sent in ``received``; each of its rows goes to one peer of this hop."""
        targets = self.scales.squeeze(1), self.data.squeeze(1)
        sent = (received.data, received.scales, received.nbits, received.group)
        group_dequantize_sum_quantize(*sent, self.nbits, seed, targets)

    def read_sum(self, out: torch.Tensor, *, hadamard: bool) -> None:
        """See ``Hop``."""
        group_dequantize(self.data, self.scales, self.nbits, self.group, hadamard, out)

    def decoded(self, out: torch.Tensor, *, hadamard: bool) -> torch.Tensor:
        """Decode to ``out``, [num_rows, num_peers, size], the values that peers will read; the inverse of ``write``."""
        for peer in range(len(self.buffer)):
            own = self.data[peer][None], self.scales[peer][None]
            group_dequantize(*own, self.nbits, self.group, hadamard, out[:, peer])
        return out

    def read_rows(self, out: torch.Tensor, *, hadamard: bool = False, add: bool = False) -> None:
        """See ``Hop``."""
        rows = self.data.transpose(0, 1), self.scales.transpose(0, 1)
        group_dequantize(*rows, self.nbits, self.group, hadamard, out, add)


@dataclass(frozen=True, slots=True)
class Plain:
    """Unquantized values of one dtype, [num_peers, num_rows, size]."""

    buffer: torch.Tensor

    @classmethod
    def empty(cls, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Plain:
        """Allocate a buffer for [num_peers, num_rows, size] values."""
        return cls(torch.empty(shape, dtype=dtype, device=device))

    @property
    def shape(self) -> tuple[int, int, int]:
        """See ``Hop``."""
        num_peers, num_rows, size = self.buffer.shape
        return num_peers, num_rows, size

    def with_peers(self, num_peers: int) -> Plain:
        """See ``Hop``."""
        return Plain(self.buffer.new_empty(num_peers, *self.shape[1:]))

    def of_peers(self, start: int, stop: int) -> Plain:
        """See ``Hop``."""
        return Plain(self.buffer[start:stop])

    def write(self, rows: torch.Tensor, seed: int | None, *, hadamard: bool) -> None:
        """See ``Hop``; there is no stochastic rounding and no transform."""
        del seed, hadamard
        self.buffer.copy_(rows.transpose(0, 1))

    def read_sum(self, out: torch.Tensor, *, hadamard: bool) -> None:
        """See ``Hop``."""
        del hadamard
        total = self.buffer[0].to(torch.float32)
        for rows in self.buffer[1:]:
            total += rows
        out.copy_(total)

    def read_rows(self, out: torch.Tensor, *, hadamard: bool = False, add: bool = False) -> None:
        """See ``Hop``."""
        del hadamard
        rows = self.buffer.squeeze(1)
        out.copy_(out + rows if add else rows)


def new_hop(
    shape: tuple[int, int, int], nbits: int, group: int, dtype: torch.dtype, device: torch.device
) -> Hop:
    """Allocate a buffer to send values of ``dtype`` in ``nbits`` each."""
    if nbits in CODED_BITS:
        return Coded.empty(shape, nbits, group, device)
    return Plain.empty(shape, torch.bfloat16 if nbits == 16 else dtype, device)
