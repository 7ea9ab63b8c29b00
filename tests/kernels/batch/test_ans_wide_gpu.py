"""More than 256 codes, and codes that escape, in lists of ``ans`` on the device.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tersor.kernels.entropy.symbols import body as symbols_body
from tersor.kernels.payload.layout import CODED, HEADER
from tersor.kernels.quantize.grid import SHRINK
from tersor.types import FLOAT_DTYPES, Bound
from tests.checks import assert_bits_equal
from tests.triton_device import INTERPRETED, MARKS

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import ans_decode, ans_plan
from tests.kernels.batch.test_ans_gpu import by_reference, decoded, read_by_reference
from tests.kernels.batch.test_packed_gpu import changed_payloads

pytestmark = MARKS

LEAST_WIDE = 1200
NUM_VALUES = 2000 if INTERPRETED else 20_000


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ans_plan, "LEAST_WIDE", LEAST_WIDE)


def spanning(num_codes: int, numel: int = NUM_VALUES, seed: int = 0) -> Tensor:
    """Return float64 values whose codes within ``HALF`` spread over a span.

    A sixth of them lie at each of its ends, so that no window around the middle escapes few.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(num_codes, (numel,), generator=generator)
    codes[::6], codes[1::6] = 0, num_codes - 1
    return (codes - num_codes // 2).double() * SHRINK


def tailed(tail: float, num_far: int, numel: int = NUM_VALUES) -> Tensor:
    """Return float64 values near 0 but for a few, which lie ``tail`` away on either side."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 9
    far = torch.arange(num_far)
    x[far * (numel // num_far)] = (tail + far).double() * (1 - far % 2 * 2)
    return x


def head_of(payload: Tensor) -> tuple[int, int]:
    """Return alphabet and number of escapes of a coded payload."""
    _, alphabet, num_escapes, _ = symbols_body.HEADER.unpack(
        bytes(payload[HEADER.size : HEADER.size + symbols_body.HEADER.size].tolist())
    )
    return alphabet, num_escapes


HALF = Bound.absolute(0.5)
FORMS = {
    "255 codes": spanning(255),
    "256 codes": spanning(256),
    "257 codes": spanning(257),
    "1000 codes": spanning(1000),
    "4096 codes": spanning(4096),
    "4097 codes": spanning(4097),
    "narrow with escapes": tailed(900.0, 10),
    "narrow with far escapes": tailed(4e6, 10),
}


def test_every_form_of_a_body_is_decoded():
    xs = list(FORMS.values())
    payloads = by_reference(xs, [HALF] * len(xs))
    assert all(int(payload[0]) == CODED for payload in payloads)
    heads = dict(zip(FORMS, map(head_of, payloads), strict=True))
    assert [heads[f"{n} codes"] for n in (255, 256, 257, 1000, 4096)] == [
        (n, 0) for n in (255, 256, 257, 1000, 4096)
    ]
    assert heads["4097 codes"][0] == 4096
    assert heads["4097 codes"][1] > 0
    assert heads["narrow with escapes"] == heads["narrow with far escapes"] == (256, 10)
    values, status = decoded(payloads, [x.shape for x in xs], torch.float64)
    assert status == [0] * len(xs)
    for x, payload, value in zip(xs, payloads, values, strict=True):
        assert_bits_equal(read_by_reference(payload, x), value)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_wide_payloads_are_decoded_between_all_others(dtype):
    noise = torch.randn(90, generator=torch.Generator().manual_seed(7))
    wide = spanning(1000)
    wide[17], wide[600] = torch.nan, torch.inf
    xs = [
        noise, wide, torch.zeros(0), torch.full((800,), 2.5), spanning(300, LEAST_WIDE - 1),
        tailed(900.0, 10), torch.full((7,), torch.nan), spanning(257, 1500, 1), noise * 1e30,
    ]  # fmt: skip
    xs = [x.to(dtype) for x in xs]
    payloads = by_reference(xs, [HALF] * len(xs))
    values, status = decoded(payloads, [x.shape for x in xs], dtype)
    small = head_of(payloads[4])[0] > 256
    assert status == [0, 0, 0, 0, ans_decode.UNKNOWN.value * small, 0, 0, 0, 0]
    for k, (x, payload, value) in enumerate(zip(xs, payloads, values, strict=True)):
        if status[k] == 0:
            assert_bits_equal(read_by_reference(payload, x), value)


@pytest.mark.parametrize("name", ["1000 codes", "4097 codes", "narrow with escapes"])
def test_changed_payloads_are_refused_as_the_codec_refuses_them(name):
    x = FORMS[name]
    (payload,) = by_reference([x], [HALF])
    payloads = [*changed_payloads(payload), payload]
    values, status = decoded(payloads, [x.shape] * len(payloads), x.dtype)
    assert any(status)
    assert status[-1] == 0
    for k, one in enumerate(payloads):
        expected = read_by_reference(one, x)
        assert (status[k] == 0) == (expected is not None), f"payload {k}"
        if expected is not None:
            assert_bits_equal(expected, values[k])


@pytest.mark.parametrize("positions", [[5, 5], [9, 4], [0, NUM_VALUES], [0, 2**32 - 1]])
def test_escapes_out_of_order_or_range_are_refused(positions):
    x = tailed(900.0, 2)
    (payload,) = by_reference([x], [HALF])
    assert head_of(payload) == (256, 2)
    start = HEADER.size + symbols_body.HEADER.size
    changed = payload.clone()
    changed[start : start + 8].view(torch.int32).copy_(torch.tensor(positions).to(torch.int32))
    assert read_by_reference(changed, x) is None
    _, status = decoded([payload, changed], [x.shape] * 2, x.dtype)
    assert status == [0, ans_decode.MALFORMED.value]
