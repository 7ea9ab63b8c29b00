"""Codecs in a child that was forked after torch computed with several threads.

torch's threads do not survive the fork, and GNU OpenMP waits for them for ever.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from tersor import Bound, Reader, Writer, decode_batch, encode_batch
from tersor.errors import SpecError
from tersor.kernels.runtime import threads
from tersor.types import FLOAT_DTYPES, TensorInfo
from tests import guards
from tests.codecs.variants import AUTO, PAYLOADS, build

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
DEADLINE_S = 60


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    # this starts the threads that the child will lack
    torch.zeros(1 << 20).add_(1)
    yield
    torch.set_num_threads(before)


def run_in_child(work) -> None:
    """Fork, run ``work`` in the child, and fail unless it ends well before the deadline."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # the poison of fresh memory is torch's own work, done outside of tersor's guards
            guards.poison = lambda fresh: fresh
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def make(dtype: torch.dtype) -> torch.Tensor:
    """Return enough values for torch to share them among its threads."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1024, 128, generator=generator).to(dtype)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("variant", [*PAYLOADS, *AUTO])
def test_a_forked_child_encodes_and_decodes(variant, dtype):
    codec, x = build(variant, Bound.relative(1e-3)), make(dtype)
    # compiled here, where nothing waits for it
    packed = codec.pack(x)
    expected = codec.unpack(packed).view(-1).view(torch.uint8).numpy().tobytes()

    def work() -> None:
        again = codec.pack(x)
        assert again.payloads[0].numpy().tobytes() == packed.payloads[0].numpy().tobytes()
        decoded = codec.unpack(again).view(-1).view(torch.uint8).numpy().tobytes()
        assert decoded == expected

    run_in_child(work)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_files_batches_and_other_layouts_work_in_a_forked_child(tmp_path, dtype):
    x, room = make(dtype), torch.zeros(128, 1024, dtype=dtype)
    codecs = [build("raw"), build("flat", Bound.relative(1e-3))]
    for codec in codecs:
        codec.unpack(codec.pack(x))

    def work() -> None:
        with Writer(tmp_path / "a.tsr") as writer:
            writer.add("a", x.T, codecs[0])
            writer.add("b", x, codecs[1])
        with Reader(tmp_path / "a.tsr") as reader:
            assert reader.read("a").shape == (128, 1024)
            assert reader.read("b").shape == x.shape
        batch = encode_batch([x.T, x], codecs)
        decode_batch(batch, [TensorInfo.of(x.T), TensorInfo.of(x)], codecs)
        codecs[0].unpack(codecs[0].pack(x), room.T)

    run_in_child(work)


@pytest.mark.usefixtures("torch_threads")
def test_torch_keeps_its_number_of_threads_in_a_forked_child():
    def work() -> None:
        assert torch.get_num_threads() == 2
        build("raw").pack(make(torch.float32)[:1])
        assert torch.get_num_threads() == 2
        with pytest.raises(SpecError):
            build("half").pack(torch.zeros(3, dtype=torch.int32))
        assert torch.get_num_threads() == 2

    run_in_child(work)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("torch_threads")
def test_kernels_keep_their_threads_in_a_forked_child():
    @threads.fork_safe
    def looked_at() -> tuple[int, int]:
        return torch.get_num_threads(), len(threads.split(2, 1 << 20))

    def work() -> None:
        assert looked_at() == (1, 2)

    assert looked_at() == (2, 2)
    run_in_child(work)
