"""Many encoded tensors in one buffer, as a collective sends them to one peer.

Every tensor has its own codec, bound and payload; the offset table locates the payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.batch.encoded_list import EncodedList, Settling, settled
from tersor.kernels.payload.frame import frame_offsets, pack_frame, split_frame
from tersor.kernels.runtime.op import backend_for
from tersor.raw_bytes import padded


class Part(NamedTuple):
    """The output of one codec call, and the positions of its tensors in the list."""

    places: list[int]
    encoded: EncodedList


class Batch:
    """Payloads of several tensors in one frame.

    Attributes:
        buffer: uint8, in the layout of ``kernels.payload.frame``. Encoded on a GPU, it has capacity for the
            largest possible payloads, or for those of an ``expected_ratio``; bytes after the last
            payload are uninitialised.
        sizes: int64 [len], bytes of each payload in ``buffer``; on the device of ``buffer`` if the host
            did not wait for them.

    A batch encoded on a GPU refers to the tensors until it is completed. If ``rows`` or ``ans`` encoded
    them, or with an ``expected_ratio``, do not change the tensors before calling ``completed``,
    ``trimmed`` or ``payloads``. These methods cache their result: if a CUDA graph encodes the batch
    repeatedly, they return the payloads of the replay that preceded their first call.
    """

    __slots__ = ("_buffer", "_parts", "_settled", "_settling", "_sizes")

    def __init__(self, buffer: torch.Tensor, sizes: torch.Tensor) -> None:
        """Take a frame and the sizes of its payloads, as they arrived; their values are checked when they are read.

        Raises:
            SpecError: the buffer is not uint8, or the sizes are not int64, of one dimension each.
        """
        _check_vector("buffer", buffer, torch.uint8)
        _check_vector("sizes", sizes, torch.int64)
        self._buffer: torch.Tensor | None = buffer
        self._sizes: torch.Tensor | None = sizes
        self._parts: list[Part] | None = None
        self._settled: list[Part] | None = None
        self._settling: Settling | None = None

    def __repr__(self) -> str:
        nbytes = self._known_nbytes()
        size = "size not read yet" if nbytes is None else f"{nbytes:,} bytes"
        return f"Batch({len(self)} tensor{'s' * (len(self) != 1)}, {size})"

    def _known_nbytes(self) -> int | None:
        """Return the bytes of all payloads if the host knows them without waiting for a GPU, else None."""
        if self._sizes is not None:
            return None if self._sizes.is_cuda else int(self._sizes.sum())
        encoded = [part.encoded for part in self._settled or self._parts or ()]
        if not all(one.is_settled and one.device_sizes is None for one in encoded):
            return None
        return sum(int(size) for one in encoded for size in one.sizes)

    def __len__(self) -> int:
        """Return the number of tensors."""
        if self._parts is None:
            return len(self.sizes)
        return sum(len(part.places) for part in self._parts)

    @classmethod
    def of(cls, payloads: Sequence[torch.Tensor]) -> Batch:
        """Return a batch of separate payloads; they are copied into a frame when ``buffer`` is read."""
        return cls.of_parts([Part(list(range(len(payloads))), EncodedList.apart(payloads))])

    @classmethod
    def of_parts(
        cls,
        parts: list[Part],
        buffer: torch.Tensor | None = None,
        sizes: torch.Tensor | None = None,
    ) -> Batch:
        """Return a batch of encoded parts, with their frame and its sizes if these exist already."""
        batch = cls.__new__(cls)
        batch._buffer, batch._sizes = buffer, sizes  # noqa: SLF001 - its own
        batch._parts, batch._settled = parts, None  # noqa: SLF001 - its own
        batch._settling = None  # noqa: SLF001 - its own
        return batch

    @property
    def buffer(self) -> torch.Tensor:
        """The frame; packed from the payloads on first access if there is none."""
        if self._buffer is None:
            self._buffer = pack_frame(self.payloads())
        return self._buffer

    @property
    def sizes(self) -> torch.Tensor:
        """Bytes of each payload, int64; read from the payloads on first access if unknown."""
        if self._sizes is None:
            nbytes = [payload.numel() for payload in self.payloads()]
            self._sizes = torch.tensor(nbytes, dtype=torch.int64, device="cpu")
        return self._sizes

    @property
    def offsets(self) -> torch.Tensor:
        """Start of each payload in ``buffer``, followed by the end of the frame: int64 [len + 1]."""
        return frame_offsets(self.sizes)

    @property
    def is_on_gpu(self) -> bool:
        """True if GPU kernels decode the frame and its sizes are on the device."""
        if self._buffer is None or self._sizes is None:
            return False
        return runs_on_gpu([self._buffer]) and self._sizes.device == self._buffer.device

    @property
    def may_overflow(self) -> bool:
        """True if ``buffer`` may lack payloads that did not fit; ``completed`` writes them."""
        return any(part.encoded.may_overflow for part in self._parts or ())

    def payloads(self) -> list[torch.Tensor]:
        """Return the payloads; waits for a GPU once, and runs the second pass where it is needed."""
        if self._parts is None:
            return list(split_frame(self.buffer, self.sizes.tolist()))
        parts = self._settle(self._parts)
        if len(parts) == 1:
            # its tensors are in the order of the list
            return parts[0].encoded.payloads()
        found: dict[int, torch.Tensor] = {}
        for places, encoded in parts:
            found.update(zip(places, encoded.payloads(), strict=True))
        return [found[k] for k in range(len(found))]

    def read_ahead(self) -> None:
        """Start copying the sizes to the host; ``payloads`` then waits for no work queued after this call."""
        if self._parts is not None and self._settled is None:
            self._settling = Settling([part.encoded for part in self._parts])

    @property
    def has_arrived(self) -> bool:
        """True if the sizes requested by ``read_ahead`` have arrived, so ``payloads`` does not wait for them."""
        return self._settling is not None and self._settling.has_arrived

    @property
    def has_second_pass(self) -> bool:
        """True if ``payloads`` ran a second pass; fused kernels may be unable to decode its payloads."""
        return any(part.encoded.parts is not None for part in self._settled or ())

    def completed(self) -> Batch:
        """Return the batch with all payloads, including those of the second pass and those that did not fit.

        Waits for the GPU, unless no second pass is possible and all payloads are certain to fit.
        """
        has_second_pass = any(part.encoded.second_pass for part in self._parts or ())
        if not has_second_pass and not self.may_overflow:
            return self
        parts = self._settle(self._parts or [])
        nbytes = [0] * len(self)
        for places, encoded in parts:
            for k, size in zip(places, encoded.sizes, strict=True):
                nbytes[k] = int(size)
        sizes = torch.tensor(nbytes, dtype=torch.int64, device="cpu")
        if len(parts) == 1:
            # the only part has its own memory, which settling may have replaced
            return Batch(parts[0].encoded.frame()[: int(frame_offsets(sizes)[-1])], sizes)
        # payloads lie apart only if some were encoded again
        if self._buffer is not None and all(part.encoded.parts is None for part in parts):
            return Batch(self._buffer[: int(frame_offsets(sizes)[-1])], sizes)
        return Batch(pack_frame(self.payloads()), sizes)

    def _settle(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts with known sizes and second-pass payloads; waits once, then is cached."""
        if self._settled is None:
            settling = self._settling
            encoded = settling.finish() if settling else settled([part.encoded for part in parts])
            pairs = zip(parts, encoded, strict=True)
            self._settled = [Part(part.places, one) for part, one in pairs]
        return self._settled

    def trimmed(self) -> Batch:
        """Return the completed batch without spare capacity, with its sizes on the CPU; waits.

        The trimmed buffer may be a view, which keeps the memory of the whole alive.

        Raises:
            CorruptDataError: a size is negative, or the sizes exceed the buffer.
        """
        batch = self.completed()
        sizes = batch.sizes.cpu()
        numbers = sizes.tolist()
        nbytes = sum(map(padded, numbers))
        if min(numbers, default=0) < 0 or nbytes > batch.buffer.numel():
            raise CorruptDataError(f"a payload size in {numbers[:8]} lies outside of the frame")
        return Batch(batch.buffer[:nbytes], sizes)


def _check_vector(name: str, x: object, dtype: torch.dtype) -> None:
    if not isinstance(x, torch.Tensor):
        raise SpecError(f"the {name} of a batch must be a torch tensor, not {type(x).__name__}")
    if x.dtype != dtype or x.dim() != 1:
        raise SpecError(
            f"the {name} of a batch must be {dtype} of one dimension, not {x.dtype} of shape {tuple(x.shape)}"
        )


def runs_on_gpu(tensors: Sequence[torch.Tensor]) -> bool:
    """True if these tensors, all on one device, are processed by GPU kernels."""
    return bool(tensors) and backend_for(tensors[0].device) == "gpu"
