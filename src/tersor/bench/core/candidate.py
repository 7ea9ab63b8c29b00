"""A common interface for the codecs that a suite measures, both ours and other projects'."""

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
    """A codec under measurement, which encodes slices and decodes them again.

    Attributes:
        name: name in tables and rows.
        version: version of the codec or of the peer's package.
        peer: whether it belongs to another project.
        slow: whether timing every slice would take too long.
        bounded: whether it takes an error bound.
        exact: whether it only copies, so it must restore every bit.
        on_codes: whether its input is quantized codes instead of floats; quantizing is not timed, and
            the codes must be restored exactly.
        quantized_by_us: whether it includes our quantizer, so that ``code_dtype`` applies.
        code_dtype: int8 or int16 for the codes of our quantizer; None for the narrowest that fits.
        max_threads: the most threads it can use.
        uses_torch_memory: whether it allocates device memory with torch's allocator.
        note: caveats for readers who compare its rows.
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
        """Return the JSON-ready options that affect the result, except the bound."""
        return {}

    def prepare(self, codes: torch.Tensor) -> torch.Tensor:
        """Convert codes to the input of ``encode_all`` if ``on_codes`` is set; not timed."""
        return codes

    @abstractmethod
    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Any:
        """Encode every slice within its absolute bound and return an opaque result.

        This call is what the encoding time covers.
        """

    @abstractmethod
    def decode_all(self, encoded: Any, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode what ``encode_all`` returned into ``outs``; the decoding time covers this call.

        ``outs`` are contiguous and have the slices' shapes and dtypes. The result is ``outs``, or new
        tensors if the library cannot write into given memory, because a copy would count against it.
        """

    @abstractmethod
    def total_nbytes(self, encoded: Any) -> int:
        """Return the size of the result of ``encode_all`` on disk or on the wire, in bytes."""


class SliceCandidate(Candidate):
    """A candidate that encodes slices one by one, each to an opaque result."""

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
    """One of our codecs with a relative bound; finding the value range is part of the time."""

    peer = False
    max_threads = 64

    def __init__(
        self, codecs: Sequence[Codec], name: str = "", *, is_absolute: bool = False
    ) -> None:
        """Wrap codecs that differ only in bounds and group sizes.

        Args:
            codecs: one per slice, or one for all slices.
            name: name of the candidate; by default the codec's id.
            is_absolute: whether ``encode_all`` passes each slice its absolute bound instead of the
                relative one, so that no range has to be found.
        """
        self.codecs, self.name = codecs, name or codecs[0].codec_id
        self.version, self.bounded = str(codecs[0].version), codecs[0].takes_bound()
        # keyed by the first tensor of a list, and dropped with that tensor
        self._infos = WeakIdKeyDictionary()
        self._absolute: dict[tuple[float, ...], Sequence[Codec]] | None = None
        if is_absolute:
            self._absolute = {}
            self.note = "; ".join(filter(None, (self.note, _GIVEN)))

    def options(self) -> dict[str, Any]:
        """Return the codecs' spec, with a list for options that differ, and the kind of bound."""
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
        """Encode all slices in one batch, in parallel if there are several threads."""
        return encode_batch(xs, self._encoders(error_bounds)).payloads()

    def decode_all(self, encoded: Any, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode all slices in one batch, in parallel if there are several threads."""
        infos = self._infos_of(outs)
        return decode_batch(Batch.of(encoded), infos, self._decoders(len(outs)), outs)

    def _infos_of(self, outs: Sequence[torch.Tensor]) -> list[TensorInfo]:
        """Return cached shapes and dtypes; a training loop has them, and 26 tensors would take 50 us."""
        infos: list[TensorInfo] | None = self._infos.get(outs[0])
        if infos is None or len(infos) != len(outs):
            infos = self._infos[outs[0]] = [TensorInfo.of(out) for out in outs]
        return infos

    def total_nbytes(self, encoded: Any) -> int:
        """Return the bytes of all payloads."""
        return sum(payload.numel() for payload in encoded)


class DeviceBatch(CodecCandidate):
    """One of our codecs as a site uses it on a GPU: one buffer, sizes on the device, no syncs."""

    max_threads = 1
    note = "one buffer, sizes left on the device"

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Batch:
        """Encode all slices into one buffer and return it with the payload sizes."""
        return encode_batch(xs, self._encoders(error_bounds))

    def decode_all(self, encoded: Batch, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode all payloads; the status stays on the device, like the sizes."""
        infos = self._infos_of(outs)
        begin_decode_batch(encoded, infos, self._decoders(len(outs)), outs)
        return outs

    def total_nbytes(self, encoded: Batch) -> int:
        """Return the bytes of all payloads, including their padding in the buffer."""
        return int(encoded.offsets[-1])


class HuffmanCodes(SliceCandidate):
    """Our Huffman kernel alone, for comparison with zstd's on the same codes."""

    name = "huffman-codes"
    peer = False
    on_codes = True
    max_threads = 64
    note = "codes to bytes and back, without quantizing"

    def __init__(self) -> None:
        """Report the version of the codec that uses the kernel."""
        self.version = str(registry.get("huffman").version)

    def prepare(self, codes: torch.Tensor) -> torch.Tensor:
        """Shift the codes to symbols that start at 0."""
        symbols = codes.to(torch.int32) - int(codes.min())
        return symbols.to(torch.uint8 if int(symbols.max()) < NARROW else torch.int16)

    def encode(self, x: torch.Tensor, error_bound: float) -> tuple[torch.Tensor, int]:
        """Encode the symbols and return the body with the alphabet size, which is found here."""
        del error_bound
        alphabet = int(x.max()) + 1
        return huffman_encode(x, alphabet), alphabet

    def decode(self, encoded: tuple[torch.Tensor, int], out: torch.Tensor) -> torch.Tensor:
        """Decode into a new tensor, because the kernel cannot write into ``out``."""
        body, alphabet = encoded
        symbols: torch.Tensor = huffman_decode(body, out.numel(), alphabet)[0]
        return symbols

    def nbytes(self, encoded: tuple[torch.Tensor, int]) -> int:
        """Return the size of the body."""
        return encoded[0].numel()
