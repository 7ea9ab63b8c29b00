"""``huffman`` and ``ans``: entropy coding of the codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tersor.codecs.registry import register
from tersor.codecs.stream import StreamCodec
from tersor.kernels.batch.encoders.entropy import AnsEncoder, HuffmanEncoder


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Huffman(StreamCodec):
    """Quantize and Huffman-code: small, and fast to decode on a CPU."""

    codec_id: ClassVar[str] = "huffman"

    def encoder(self) -> HuffmanEncoder:
        """Huffman coding."""
        return HuffmanEncoder()


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Ans(StreamCodec):
    """Quantize and rANS-code: within 1 % of the entropy, made for GPUs.

    ``frequencies`` is an optional static table, known to both sides and not stored: one entry per
    code, centred on code 0, and the last for the escape; see ``AnsEncoder``.
    """

    codec_id: ClassVar[str] = "ans"

    frequencies: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Take lists as JSON gives them."""
        if isinstance(self.frequencies, list):
            object.__setattr__(self, "frequencies", tuple(self.frequencies))
        StreamCodec.__post_init__(self)

    def encoder(self) -> AnsEncoder:
        """RANS coding."""
        return AnsEncoder(frequencies=self.frequencies)
