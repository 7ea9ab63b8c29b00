"""A GPU writes a payload at once where a tensor of its form came before, and again where it does not fit."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from tersor import Bound, compress, decompress, set_graph_replay, use_backend
from tersor.codecs.codec import LAST_PACKED
from tersor.kernels.batch.encoded_list import Settling, Unwritten
from tests.checks import assert_within_bound
from tests.triton_device import DEVICE, MARKS

pytestmark = MARKS
SIZES = {"small": 0.01, "same": 1.0, "large": 100.0}


@pytest.fixture
def writes(monkeypatch):
    """Note how many bytes each write has room for; a replay writes small payloads where it measures them."""
    set_graph_replay(False)
    LAST_PACKED.clear()
    made = []
    written = Unwritten.written

    def counted(self: Unwritten, nbytes: int) -> torch.Tensor:
        made.append(nbytes)
        return written(self, nbytes)

    monkeypatch.setattr(Unwritten, "written", counted)
    yield made
    set_graph_replay(True)
    LAST_PACKED.clear()


def values(scale: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    # flat writes up to 8192 values in the launch that measures them
    noise = torch.randn(8200, generator=torch.Generator().manual_seed(1))
    return (scale * noise).to(dtype).to(DEVICE)


@pytest.mark.parametrize("codec", ["flat", "delta"])
@pytest.mark.parametrize("second", SIZES)
def test_payloads_are_those_of_a_first_call(codec, second, writes):
    bound = Bound.absolute(0.01)
    x = values(SIZES[second])
    with use_backend("gpu"):
        alone = compress(x, bound, codec=codec)
        LAST_PACKED.clear()
        first = compress(values(1.0), bound, codec=codec)
        writes.clear()
        packed = compress(x, bound, codec=codec)
        assert torch.equal(packed.payloads[0], alone.payloads[0])
        assert_within_bound(x, decompress(packed), 0.01)
    expected = {"small": 1, "same": 1, "large": 2}
    assert len(writes) == expected[second], "written again only where it did not fit"
    assert first.nbytes <= writes[0] <= 1.04 * first.nbytes + 8
    held_nbytes = packed.payloads[0].untyped_storage().nbytes()
    assert held_nbytes <= 16 / 15 * packed.nbytes + 8, (
        "memory that was expected and not needed is given back"
    )


def test_a_size_that_is_expected_is_read_before_the_payload_is_written(writes, monkeypatch):
    begin = Settling.__init__
    read_after: list[int] = []

    def begun(self, *arguments):
        read_after.append(len(writes))
        begin(self, *arguments)

    monkeypatch.setattr(Settling, "__init__", begun)
    with use_backend("gpu"):
        for _ in range(2):
            compress(values(1.0), Bound.absolute(0.01), codec="flat")
    # the first call waits for the size and then writes; so does the second, but it writes at once
    assert read_after == [0, 1]
    assert len(writes) == 2


def test_a_call_with_little_memory_does_not_change_what_is_expected(writes):
    bound = Bound.absolute(0.01)
    with use_backend("gpu"):
        compress(values(1.0), bound, codec="flat")
        (known,) = LAST_PACKED._found.values()
        compress(values(100.0), bound, codec="flat", max_workspace_nbytes=1 << 24)
    assert list(LAST_PACKED._found.values()) == [known]
    assert known.nbytes > 0


def test_another_form_has_no_expected_size(writes):
    with use_backend("gpu"):
        for x, bound in (
            (values(1.0), Bound.absolute(0.01)),
            (values(1.0)[1:], Bound.absolute(0.01)),
            (values(1.0, torch.bfloat16), Bound.absolute(0.01)),
            (values(1.0), Bound.absolute(0.02)),
        ):
            packed = compress(x, bound, codec="flat")
            assert writes[-1] <= packed.nbytes + 7, "exactly what it takes, as nothing was expected"
    assert len(writes) == 4
