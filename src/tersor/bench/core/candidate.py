"""What a suite measures: a codec of ours or another project's, behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.container import Batch, begin_decode_batch, decode_batch, encode_batch
from tersor.kernels.entropy.huffman import huffman_decode, huffman_encode
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.types import Bound, TensorInfo

_GIVEN: Final = "the absolute bound of each slice was given"


class Candidate(ABC):
    """Something that encodes slices and decodes them again.

    Attributes:
        name: shown in tables and written to rows.
        version: of the codec, or of the peer's package.
        peer: whether it is another project's work.
        slow: whether timing every slice would take too long.
        bounded: whether it takes an error bound.
        exact: whether it only copies, and must give back every bit.
        on_codes: whether it is given quantized codes (losslessly, untimed) instead of floats.
        quantized_by_us: whether our quantizer is part of it, so that ``code_dtype`` means something.
        code_dtype: int8 or int16 for the codes that it makes so; None for the narrowest that fits.
        max_threads: most threads it can use.
        uses_torch_memory: whether the device memory it takes comes from torch's allocator.
        note: what a reader must know to compare its rows.
    """

    name: str
    version: str
    peer: ClassVar[bool] = True
    slow: ClassVar[bool] = False
    bounded: bool = True
    exact: ClassVar[bool] = False
    on_codes: ClassVar[bool] = False
    quantized_by_us: ClassVar[bool] = False
    code_dtype: torch.dtype | None = None
    max_threads: ClassVar[int] = 1
    uses_torch_memory: bool = True
    note: str = ""

    def options(self) -> dict[str, Any]:
        """Return the JSON-ready options that shape the result, without the bound."""
        return {}

    def prepare(self, codes: torch.Tensor) -> torch.Tensor:
        """Return what ``encode_all`` gets, where ``on_codes`` is set; not timed."""
        return codes

    @abstractmethod
    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Any:
        """Encode every slice within its absolute bound; what the encoding time is taken of.

        The result is opaque.
        """

    @abstractmethod
    def decode_all(self, encoded: Any, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode what ``encode_all`` returned into ``outs``; what the decoding time is taken of.

        ``outs`` are contiguous and of the slices' shapes and dtypes. Returns them, or new tensors
        where the library cannot write into memory it is given: copying would be charged to it.
        """

    @abstractmethod
    def total_nbytes(self, encoded: Any) -> int:
        """Return the bytes that what ``encode_all`` returned needs on disk or wire."""


class SliceCandidate(Candidate):
    """One that takes one slice after the other; what it returns for each is opaque."""

    @abstractmethod
    def encode(self, x: torch.Tensor, error_bound: float) -> Any:
        """Encode one slice; see ``Candidate.encode_all``."""

    @abstractmethod
    def decode(self, encoded: Any, out: torch.Tensor) -> torch.Tensor:
        """Decode one slice; see ``Candidate.decode_all``."""

    @abstractmethod
    def nbytes(self, encoded: Any) -> int:
        """Return the bytes of one encoded slice."""

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> list[Any]:
        """See ``Candidate.encode_all``."""
        return [self.encode(x, bound) for x, bound in zip(xs, error_bounds, strict=True)]

    def decode_all(
        self, encoded: Sequence[Any], outs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """See ``Candidate.decode_all``."""
        return [self.decode(one, out) for one, out in zip(encoded, outs, strict=True)]

    def total_nbytes(self, encoded: Sequence[Any]) -> int:
        """See ``Candidate.total_nbytes``."""
        return sum(self.nbytes(one) for one in encoded)


class CodecCandidate(Candidate):
    """A codec of ours, asked for a relative bound, so that finding the range is timed too."""

    peer = False
    max_threads = 64

    def __init__(
        self, codecs: Sequence[Codec], name: str = "", *, is_absolute: bool = False
    ) -> None:
        """Measure codecs that are the same but for bounds and the sizes of groups.

        Args:
            codecs: one for each slice, or one for all.
            name: of the candidate; by default the codec's id.
            is_absolute: whether ``encode_all`` gives each slice its absolute bound in place of the
                relative one, so that no range is looked for.
        """
        self.codecs, self.name = codecs, name or codecs[0].codec_id
        self.version, self.bounded = str(codecs[0].version), codecs[0].takes_bound()
        # by the first tensor of a list, and only as long as it lives
        self._infos = WeakIdKeyDictionary()
        self._absolute: dict[tuple[float, ...], Sequence[Codec]] | None = None
        if is_absolute:
            self._absolute = {}
            self.note = "; ".join(filter(None, (self.note, _GIVEN)))

    def options(self) -> dict[str, Any]:
        """Return the codecs' own spec, a list where they differ, and which kind of bound was given."""
        configs = [codec.to_config() for codec in dict.fromkeys(self.codecs)]
        given = {} if self._absolute is None else {"given": "absolute"}
        values = {
            name: [config[name] for config in configs]
            for name in configs[0]
            if name not in ("id", "version", "bound")
        }
        return {k: v[0] if all(one == v[0] for one in v) else v for k, v in values.items()} | given

    def _encoders(self, error_bounds: Sequence[float]) -> Sequence[Codec]:
        if self._absolute is None:
            return self._decoders(len(error_bounds))
        bounds = tuple(error_bounds)
        if bounds not in self._absolute:
            codec: Any = self.codecs[0]
            self._absolute[bounds] = [replace(codec, bound=Bound.absolute(b)) for b in bounds]
        return self._absolute[bounds]

    def _decoders(self, count: int) -> Sequence[Codec]:
        return self.codecs if len(self.codecs) == count else [self.codecs[0]] * count

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Any:
        """Encode every slice, in parallel where there are threads."""
        return encode_batch(xs, self._encoders(error_bounds)).payloads()

    def decode_all(self, encoded: Any, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode every slice, in parallel where there are threads."""
        infos = self._infos_of(outs)
        return decode_batch(Batch.of(encoded), infos, self._decoders(len(outs)), outs)

    def _infos_of(self, outs: Sequence[torch.Tensor]) -> list[TensorInfo]:
        """Return shapes and dtypes, found once: a loop has them, and for 26 tensors that takes 50 us."""
        infos: list[TensorInfo] | None = self._infos.get(outs[0])
        if infos is None or len(infos) != len(outs):
            infos = self._infos[outs[0]] = [TensorInfo.of(out) for out in outs]
        return infos

    def total_nbytes(self, encoded: Any) -> int:
        """Return the bytes of all payloads."""
        return sum(payload.numel() for payload in encoded)


class DeviceBatch(CodecCandidate):
    """A codec of ours as a site uses it on a GPU: one buffer, sizes left there, no waiting."""

    max_threads = 1
    note = "one buffer, sizes left on the device"

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Batch:
        """Return the buffer and the sizes of the payloads in it."""
        return encode_batch(xs, self._encoders(error_bounds))

    def decode_all(self, encoded: Batch, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode all payloads; the status is left on the device, as the sizes are."""
        infos = self._infos_of(outs)
        begin_decode_batch(encoded, infos, self._decoders(len(outs)), outs)
        return outs

    def total_nbytes(self, encoded: Batch) -> int:
        """Return the bytes of all payloads, each padded as it lies in the buffer."""
        return int(encoded.offsets[-1])


class HuffmanCodes(SliceCandidate):
    """Our Huffman kernel alone, to be compared with zstd's on the same codes."""

    name = "huffman-codes"
    peer = False
    on_codes = True
    max_threads = 64
    note = "codes to bytes and back, without quantizing"

    def __init__(self) -> None:
        """Take the version of the codec built on the kernel."""
        self.version = str(registry.get("huffman").version)

    def prepare(self, codes: torch.Tensor) -> torch.Tensor:
        """Shift the codes to symbols that start at 0."""
        symbols = codes.to(torch.int32) - int(codes.min())
        return symbols.to(torch.uint8 if int(symbols.max()) < NARROW else torch.int16)

    def encode(self, x: torch.Tensor, error_bound: float) -> tuple[torch.Tensor, int]:
        """Encode the symbols; the size of the alphabet, found here, goes along."""
        del error_bound
        alphabet = int(x.max()) + 1
        return huffman_encode(x, alphabet), alphabet

    def decode(self, encoded: tuple[torch.Tensor, int], out: torch.Tensor) -> torch.Tensor:
        """Decode into a new tensor, as the kernel does."""
        body, alphabet = encoded
        symbols: torch.Tensor = huffman_decode(body, out.numel(), alphabet)[0]
        return symbols

    def nbytes(self, encoded: tuple[torch.Tensor, int]) -> int:
        """Return the size of the body."""
        return encoded[0].numel()
