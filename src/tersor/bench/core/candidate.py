"""What a suite measures: a codec of ours or another project's, behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.container import Batch, decode_batch, encode_batch
from tersor.kernels.entropy.huffman import huffman_decode, huffman_encode
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.types import Bound, TensorInfo


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
        """Return what ``encode`` gets, where ``on_codes`` is set; not timed."""
        return codes

    @abstractmethod
    def encode(self, x: torch.Tensor, error_bound: float) -> Any:
        """Encode one slice within an absolute error bound; the result is opaque."""

    @abstractmethod
    def decode(self, encoded: Any, out: torch.Tensor) -> torch.Tensor:
        """Decode one slice into ``out``, contiguous and of the slice's shape and dtype.

        Returns ``out``, or a new tensor where the library cannot write into memory it is given:
        copying would be charged to it.
        """

    @abstractmethod
    def nbytes(self, encoded: Any) -> int:
        """Return the bytes one encoded slice needs on disk or wire."""

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Any:
        """Encode every slice; what the encoding time is taken of."""
        return [self.encode(x, bound) for x, bound in zip(xs, error_bounds, strict=True)]

    def decode_all(self, encoded: Any, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode what ``encode_all`` returned; what the decoding time is taken of."""
        return [self.decode(one, out) for one, out in zip(encoded, outs, strict=True)]

    def total_nbytes(self, encoded: Any) -> int:
        """Return the bytes of what ``encode_all`` returned."""
        return sum(self.nbytes(one) for one in encoded)


class ListCandidate(Candidate):
    """One that encodes a list of slices into one thing, so that a slice alone is a list of one."""

    def encode(self, x: torch.Tensor, error_bound: float) -> Any:
        """See ``Candidate.encode``."""
        return self.encode_all([x], [error_bound])

    def decode(self, encoded: Any, out: torch.Tensor) -> torch.Tensor:
        """See ``Candidate.decode``."""
        return self.decode_all(encoded, [out])[0]

    def nbytes(self, encoded: Any) -> int:
        """See ``Candidate.nbytes``."""
        return self.total_nbytes(encoded)

    @abstractmethod
    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Any:
        """See ``Candidate.encode_all``."""

    @abstractmethod
    def decode_all(self, encoded: Any, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """See ``Candidate.decode_all``."""

    @abstractmethod
    def total_nbytes(self, encoded: Any) -> int:
        """See ``Candidate.total_nbytes``."""


class CodecCandidate(Candidate):
    """A codec of ours, asked for a relative bound, so that finding the range is timed too."""

    peer = False
    max_threads = 64

    def __init__(self, codec: Codec) -> None:
        """Measure ``codec`` as it is configured."""
        self.codec = codec
        self.name = codec.codec_id
        self.version = str(codec.version)
        self.bounded = codec.takes_bound()

    @classmethod
    def create(cls, codec_id: str, relative_bound: float | None) -> CodecCandidate:
        """Build the registered codec; ``relative_bound`` must be None where it takes no bound."""
        spec = {} if relative_bound is None else {"bound": Bound.relative(relative_bound)}
        return cls(registry.create(codec_id, **spec))

    def options(self) -> dict[str, Any]:
        """Return the codec's own spec."""
        config = self.codec.to_config()
        return {k: v for k, v in config.items() if k not in ("id", "version", "bound")}

    def encode(self, x: torch.Tensor, error_bound: float) -> torch.Tensor:
        """Encode with the codec's own bound; ``error_bound`` is not needed."""
        return self.encode_all([x], [error_bound])[0]

    def decode(self, encoded: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Decode into ``out``."""
        return self.decode_all([encoded], [out])[0]

    def nbytes(self, encoded: torch.Tensor) -> int:
        """Return the size of the payload."""
        return encoded.numel()

    def encode_all(
        self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]
    ) -> list[torch.Tensor]:
        """Encode every slice, in parallel where there are threads."""
        del error_bounds
        return encode_batch(xs, [self.codec] * len(xs)).payloads()

    def decode_all(
        self, encoded: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Decode every slice, in parallel where there are threads."""
        infos = [TensorInfo.of(out) for out in outs]
        return decode_batch(Batch.of(encoded), infos, [self.codec] * len(outs), outs)


class HuffmanCodes(Candidate):
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
