"""What codecs of one stream of codes share: quantize, predict perhaps, encode."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tersor.codecs.pipeline import BoundedPipeline
from tersor.errors import SpecError
from tersor.kernels.batch import decode_streams, encode_streams
from tersor.kernels.batch.encoders.encoder import Encoder
from tersor.kernels.batch.pipeline import Bounded, Pipeline, StreamPipeline
from tersor.kernels.runtime.op import Op


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamCodec(BoundedPipeline):
    """Quantize, predict perhaps, encode: one stream of codes in the tensor's own order.

    ``lorenzo`` is the number of trailing axes that predict: 0 none, 1 the flattened tensor, 2 or
    3 the last axes (as many as the tensor has).
    """

    encode_op: ClassVar[Op] = encode_streams
    decode_op: ClassVar[Op] = decode_streams

    lorenzo: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible options."""
        # not super(): dataclass slots make a new class, which the zero-argument form misses
        BoundedPipeline.__post_init__(self)
        if type(self.lorenzo) is not int or self.lorenzo not in (0, 1, 2, 3):
            raise SpecError(f"lorenzo must be 0, 1, 2 or 3, not {self.lorenzo}")
        self.encoder()

    @abstractmethod
    def encoder(self) -> Encoder:
        """Return the encoder of the codes."""

    def pipeline(self) -> StreamPipeline:
        """Quantize, predict, encode."""
        return Pipeline(None, Bounded(), self.lorenzo, self.encoder())
