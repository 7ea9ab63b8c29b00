"""What all error-bounded codecs share: the grid, the outliers, and the way out to exact storage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.codec import Codec, check_num_values, checked_payload, pad_payload
from tersor.codecs.lists import decode_each, encode_each, runs_on_gpu
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.quantize import Grid, finite_range
from tersor.kernels.quantize.grid import is_step
from tersor.raw_bytes import as_bytes, padded
from tersor.stages import payload as layout
from tersor.stages.encoders.encoder import Encoder
from tersor.types import Bound

Coded = torch.Tensor | layout.Body | None
"""A finished payload, what there is to make one of, or None if no grid can keep the bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedCodec(Codec):
    """A codec whose every finite value decodes to within ``bound``; the rest come back exactly."""

    guarantee: ClassVar[str] = "every finite value within the bound, NaN and infinities kept"

    bound: Bound

    def __post_init__(self) -> None:
        """Refuse anything but a ``Bound``."""
        check_is_bound(self.bound)

    @abstractmethod
    def encode_body(self, x: torch.Tensor, error_bound: float) -> Coded:
        """Return the coded form of a tensor that is not empty."""

    @abstractmethod
    def decode_body(self, opened: layout.Opened, out: torch.Tensor) -> None:
        """Decode ``opened.body`` into ``out`` and put the outliers in place."""

    def encode_bodies(self, xs: Sequence[torch.Tensor]) -> Sequence[Coded]:
        """Return the coded forms of tensors within the codec's own bound; None for an empty one."""
        return [self.encode_body(x, self.resolve_bound(x)) if x.numel() else None for x in xs]

    def decode_plain(
        self, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> Sequence[bool]:
        """Decode what is quicker to decode as a list; say of each payload whether that was done."""
        del outs
        return [False] * len(payloads)

    def resolve_bound(self, x: torch.Tensor) -> float:
        """Return the absolute error bound for ``x``; 0 for a tensor without finite values."""
        if self.bound.kind == "absolute":
            return self.bound.value
        low, high = finite_range(x).tolist()
        return self.bound.resolve(low, high) if low <= high else 0.0

    def encode_payload(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        """See ``Codec.encode_payload``."""
        if error_bound is None:
            raise SpecError(f"codec {self.codec_id!r} needs the resolved error bound")
        return _seal(x, self.encode_body(x, error_bound) if x.numel() else None)

    def encode_tensor(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Codec.encode_tensor``."""
        return self.encode_tensors([x])[0]

    def encode_tensors(self, xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See ``Codec.encode_tensors``."""
        for x in xs:
            check_num_values(x.numel())
        if runs_on_gpu(xs):
            return encode_each(xs, [self] * len(xs))
        bodies = self.encode_bodies(xs)
        return [pad_payload(_seal(x, body), x.numel()) for x, body in zip(xs, bodies, strict=True)]

    def decode_payload(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Codec.decode_payload``."""
        self.decode_payloads([payload], [out])

    def decode_payloads(
        self, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> None:
        """See ``Codec.decode_payloads``."""
        payloads = [checked_payload(payload) for payload in payloads]
        if runs_on_gpu(outs):
            decode_each(payloads, outs, [self] * len(outs))
            return
        decoded = self.decode_plain(payloads, outs)
        for payload, out, is_decoded in zip(payloads, outs, decoded, strict=True):
            if not is_decoded:
                self.decode_alone(payload, out)

    def decode_alone(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Codec.decode_alone``."""
        opened = layout.open_payload(checked_payload(payload), out)
        if opened.mode != layout.EXACT and out.numel() == 0:
            raise CorruptDataError("an empty tensor is stored exactly, not coded")
        if opened.mode == layout.CODED:
            if not is_step(opened.step, out.dtype):
                raise CorruptDataError(f"a payload has the impossible step {opened.step}")
            self.decode_body(opened, out)
        elif opened.mode == layout.CONSTANT:
            _fill(opened, out)
        else:
            if opened.body.numel() != padded(out.nbytes) or opened.positions.numel():
                raise CorruptDataError("exactly stored values have the wrong size")
            as_bytes(out).copy_(opened.body[: out.nbytes])

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Header plus the tensor's own size: nothing is ever stored larger than exactly."""
        return layout.exact_nbytes(torch.Size(shape).numel() * dtype.itemsize)


def check_is_bound(bound: object) -> None:
    """Raise ``SpecError`` for anything but a ``Bound``."""
    if not isinstance(bound, Bound):
        raise SpecError(
            "bound must be Bound.absolute(e) or Bound.relative(r), for example "
            f"Bound.relative(1e-3), not {type(bound).__name__}"
        )


def _seal(x: torch.Tensor, body: Coded) -> torch.Tensor:
    """Make the payload of a tensor; store exactly what would not get smaller."""
    if isinstance(body, torch.Tensor):
        return body
    if body is not None and body.nbytes < layout.exact_nbytes(x.nbytes):
        return layout.seal(layout.CODED, body)
    return _seal_constant(x) if x.numel() else layout.seal_exact(x)


def check_all_read(opened: layout.Opened, nbytes: int) -> None:
    """Raise ``CorruptDataError`` unless a decoder read the whole body."""
    if nbytes != opened.body.numel():
        raise CorruptDataError("a coded body has bytes left over")


def _fill(opened: layout.Opened, out: torch.Tensor) -> None:
    """Write the constant everywhere but at the outliers."""
    in_range = abs(opened.step) <= torch.finfo(out.dtype).max
    if opened.body.numel() or not in_range:
        raise CorruptDataError("a constant payload has a body or an impossible value")
    out.fill_(opened.step)
    if out.numel() and float(out.view(-1)[0]) != opened.step:
        raise CorruptDataError("a constant payload has a value that its dtype cannot hold")
    put_outliers(opened, out)


def put_outliers(opened: layout.Opened, out: torch.Tensor) -> None:
    """Write the exactly stored values over the decoded ones."""
    if opened.positions.numel():
        out.view(-1)[opened.positions] = opened.values


def _seal_constant(x: torch.Tensor) -> torch.Tensor:
    """Store one value and the non-finite ones if all finite values are equal; else store exactly."""
    low, high = finite_range(x).tolist()
    if low != high:
        return layout.seal_exact(x)
    positions = torch.nonzero(~torch.isfinite(x.view(-1))).view(-1)
    room = torch.zeros(layout.HEADER.size, dtype=torch.uint8, device=x.device)
    body = layout.Body(low, room, positions, x.view(-1)[positions])
    small = body.nbytes < layout.exact_nbytes(x.nbytes)
    return layout.seal(layout.CONSTANT, body) if small else layout.seal_exact(x)


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamCodec(BoundedCodec):
    """Quantize, predict perhaps, encode: one stream of codes in the tensor's own order.

    ``lorenzo`` is the number of trailing axes that predict: 0 none, 1 the flattened tensor, 2 or
    3 the last axes (as many as the tensor has).
    """

    lorenzo: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible options."""
        # not super(): dataclass slots make a new class, which the zero-argument form misses
        BoundedCodec.__post_init__(self)
        if type(self.lorenzo) is not int or self.lorenzo not in (0, 1, 2, 3):
            raise SpecError(f"lorenzo must be 0, 1, 2 or 3, not {self.lorenzo}")
        self.encoder()

    @abstractmethod
    def encoder(self) -> Encoder:
        """Return the encoder of the codes."""

    def encode_body(self, x: torch.Tensor, error_bound: float) -> Coded:
        """See ``BoundedCodec.encode_body``."""
        grid = Grid.for_bound(error_bound, x.dtype)
        if grid is None:
            return None
        lead = layout.HEADER.size
        if self.lorenzo == 0:
            data, positions = self.encoder().quantize_encode(x, grid, lead)
        else:
            data, positions = self.encoder().predict_encode(x, grid, self.lorenzo, lead)
        values = x.view(-1)[positions] if positions.numel() else positions
        return layout.Body(grid.step, data, positions, values)

    def decode_body(self, opened: layout.Opened, out: torch.Tensor) -> None:
        """See ``BoundedCodec.decode_body``."""
        encoder = self.encoder()
        if self.lorenzo == 0:
            nbytes = encoder.decode_dequantize(opened.body, opened.step, out)
        else:
            nbytes = encoder.decode_restore(opened.body, opened.step, self.lorenzo, out)
        check_all_read(opened, nbytes)
        put_outliers(opened, out)
