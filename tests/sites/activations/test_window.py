"""Tensors on a GPU wait in a window and are encoded as one list; here in Triton's interpreter."""

from __future__ import annotations

import gc
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from tersor import Bound, create, use_backend
from tersor.container import Batch
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.sites import activations
from tersor.sites.activations import compression as compression_module
from tersor.sites.activations import window as window_module
from tersor.sites.activations.entry import Entry
from tersor.sites.activations.forms import PackedForm, Unchanged, WindowPayloads
from tersor.sites.activations.report import Ledger, Live
from tersor.sites.activations.window import EncodingWindows, Window
from tests.sites.activations.models import all_equal, gradients

CODECS = {
    "raw": create("raw"),
    "group4": create("group4"),
    "ans": create("ans", bound=Bound.relative(0.01)),
    "rms": create("rms", step=0.5),
}


@pytest.fixture
def gpu():
    with use_backend("gpu"):
        yield


@pytest.fixture
def late(monkeypatch):
    """A device that is behind the host: no sizes are there until somebody waits for them."""
    monkeypatch.setattr(Batch, "has_arrived", False)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh()
    )


def _entry(values: torch.Tensor) -> Entry:
    return Entry(values, Unchanged(values), "waiting", Ledger(Live()))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("window_nbytes", [1, 10_000, 1 << 20])
def test_every_window_gives_the_gradients_of_tensors_encoded_alone(
    gpu, codec, window_nbytes
) -> None:
    model, x = _mlp(), torch.randn(64, 32)
    compression = activations.compressed(CODECS[codec], window_nbytes=window_nbytes)
    windowed = gradients(model, model, x, compression)
    assert compression.report().forms[codec].num_tensors >= 3
    with use_backend("cpu"):
        alone = gradients(model, model, x, activations.compressed(CODECS[codec]))
    assert all_equal(windowed, alone)


def test_a_window_is_one_call_of_the_codec(gpu, monkeypatch) -> None:
    lengths = []
    encode = window_module.encode_batch
    monkeypatch.setattr(
        window_module,
        "encode_batch",
        lambda xs, codecs: lengths.append(len(xs)) or encode(xs, codecs),
    )
    window = Window(4 * 4096, CODECS["group4"])
    entries = [_entry(torch.randn(1024)) for _ in range(10)]
    for entry in entries:
        window.add(entry, entry.form.restored())
    assert lengths == [4, 4]
    window.flush()
    assert lengths == [4, 4, 2]


def test_a_list_is_encoded_on_the_stream_of_its_tensors(gpu, monkeypatch) -> None:
    current: list[str] = []

    @contextmanager
    def running_on(stream):
        current.append(stream)
        yield
        current.pop()

    found = []
    encode = window_module.encode_batch
    monkeypatch.setattr(window_module, "_running_on", running_on)
    monkeypatch.setattr(
        window_module,
        "encode_batch",
        lambda *args: found.append(("encode", current[-1])) or encode(*args),
    )
    monkeypatch.setattr(
        window_module, "protect_from_reuse", lambda x: found.append((x.numel(), current[-1]))
    )
    window = Window(1 << 20, CODECS["group4"])
    entries = [_entry(torch.randn(1024)), _entry(torch.randn(2048))]
    for entry in entries:
        window.add(entry, entry.form.restored())
    # set by ``add`` for tensors on a GPU; the window is flushed where another stream is current
    window._stream = "its own"
    window.flush()
    # tensors may be memory of another stream, which does not wait for this one
    assert found == [("encode", "its own"), (1024, "its own"), (2048, "its own")]


def test_sizes_are_read_two_windows_late_and_payloads_have_their_own_size(
    gpu, late, monkeypatch
) -> None:
    read: list[str] = []
    payloads, ahead = Batch.payloads, Batch.read_ahead
    monkeypatch.setattr(Batch, "payloads", lambda self: read.append("read") or payloads(self))
    monkeypatch.setattr(Batch, "read_ahead", lambda self: read.append("ahead") or ahead(self))
    window = Window(2 * 4096, CODECS["ans"])
    entries = [_entry(torch.randn(1024)) for _ in range(6)]
    for entry in entries[:4]:
        window.add(entry, entry.form.restored())
    assert read == ["ahead", "ahead"]
    for entry in entries[4:]:
        window.add(entry, entry.form.restored())
    assert read == ["ahead", "ahead", "read", "ahead"]
    first = entries[0].form
    assert isinstance(first, WindowPayloads)
    # one list of neighbours, however many tensors there are
    assert first.window is entries[1].form.window
    # memory of the window's payloads, and no more
    held = first.parts[0].untyped_storage().nbytes()
    assert held <= sum(entry.form.nbytes for entry in entries[:2]) + 16
    assert held < 4096


def test_windows_of_several_codecs_wait_for_two_lists_together(gpu, late, monkeypatch) -> None:
    read: list[str] = []
    payloads, ahead = Batch.payloads, Batch.read_ahead
    monkeypatch.setattr(Batch, "payloads", lambda self: read.append("read") or payloads(self))
    monkeypatch.setattr(Batch, "read_ahead", lambda self: read.append("ahead") or ahead(self))
    windows = EncodingWindows(4096, measures=False)
    entries = [_entry(torch.randn(1024)) for _ in range(4)]
    for entry, name in zip(entries, ("ans", "rms", "group4", "ans"), strict=True):
        windows.add(entry, entry.form.restored(), CODECS[name])
    assert read == ["ahead", "ahead", "read", "ahead", "read", "ahead"]


def test_sizes_that_are_there_are_not_left_for_later(gpu) -> None:
    windows = EncodingWindows(4096, measures=False)
    entries = [_entry(torch.randn(1024)) for _ in range(2)]
    for entry in entries:
        windows.add(entry, entry.form.restored(), CODECS["rms"])
    assert isinstance(entries[0].form, WindowPayloads)
    windows.flush()
    assert isinstance(entries[1].form, WindowPayloads)


def test_what_waits_in_windows_of_several_codecs_is_bounded(gpu) -> None:
    windows = EncodingWindows(3 * 4096, measures=False)
    entries = [_entry(torch.randn(1024)) for _ in range(8)]
    waiting = []
    for entry, name in zip(entries, 2 * ("raw", "ans", "rms", "group4"), strict=True):
        windows.add(entry, entry.form.restored(), CODECS[name])
        waiting.append(sum(one.waiting_nbytes for one in windows._windows.values()))
    assert max(waiting) == 2 * 3 * 4096
    assert waiting[-1] < len(entries) * 4096


def test_a_tensor_larger_than_the_window_is_encoded_alone(gpu, monkeypatch) -> None:
    lengths = []
    encode = window_module.encode_batch
    monkeypatch.setattr(
        window_module,
        "encode_batch",
        lambda xs, codecs: lengths.append(len(xs)) or encode(xs, codecs),
    )
    window = Window(4096, CODECS["group4"])
    entries = [_entry(torch.randn(n)) for n in (100, 4096, 100)]
    for entry in entries:
        window.add(entry, entry.form.restored())
    window.flush()
    assert lengths == [1, 1, 1]


def test_what_nobody_needs_any_more_is_not_encoded(gpu, monkeypatch) -> None:
    lengths = []
    encode = window_module.encode_batch
    monkeypatch.setattr(
        window_module,
        "encode_batch",
        lambda xs, codecs: lengths.append(len(xs)) or encode(xs, codecs),
    )
    window = Window(1 << 20, CODECS["group4"])
    held, gone = _entry(torch.randn(1024)), _entry(torch.randn(1024))
    for entry in (held, gone):
        window.add(entry, entry.form.restored())
    del entry, gone
    gc.collect()
    window.flush()
    assert lengths == [1]


def test_a_change_in_place_while_a_tensor_waits_raises_in_backward(gpu) -> None:
    layer = nn.Linear(32, 32)
    with activations.compressed("group4"):
        y = torch.relu(layer(torch.randn(64, 32)))
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backward_inside_the_context_finds_what_waits(gpu) -> None:
    model, x = _mlp(), torch.randn(64, 32)
    exact = gradients(model, model, x)
    with activations.compressed("raw"):
        model.zero_grad()
        model(x).square().mean().backward()
    assert all_equal(exact, [p.grad for p in model.parameters()])


def test_without_memory_a_window_is_kept(gpu, monkeypatch) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(window_module, "encode_batch", lacking)
    model, x = _mlp(), torch.randn(64, 32)
    exact = gradients(model, model, x)
    compression = activations.compressed("group4")
    assert all_equal(exact, gradients(model, model, x, compression))
    assert "exact: no memory to encode" in compression.report().forms


def test_without_memory_for_payloads_of_their_own_a_list_stays_as_it_is(gpu, monkeypatch) -> None:
    def lacking(self: Batch) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    model, x = _mlp(), torch.randn(64, 32)
    exact = gradients(model, model, x)
    payloads = Batch.payloads
    monkeypatch.setattr(Batch, "payloads", lacking)
    with activations.compressed("raw", window_nbytes=1):
        torch.manual_seed(1)
        model.zero_grad()
        out = model(x)
    monkeypatch.setattr(Batch, "payloads", payloads)
    out.square().mean().backward()
    assert all_equal(exact, [p.grad for p in model.parameters()])


def test_what_fused_kernels_leave_to_a_second_pass_is_decoded_too(gpu) -> None:
    # more than 256 codes: ans encodes such a tensor in a second pass
    codec = create("ans", bound=Bound.absolute(1e-4))
    window = Window(1 << 20, codec)
    values = [torch.randn(2048), torch.full((2048,), 0.5)]
    entries = [_entry(x.clone()) for x in values]
    for entry in entries:
        window.add(entry, entry.form.restored())
    window.flush()
    for entry, x in zip(entries, values, strict=True):
        assert (entry.restored().double() - x.double()).abs().max() <= 1e-4


def test_a_large_tensor_takes_memory_for_its_payload_alone(gpu, monkeypatch) -> None:
    rooms = []
    written = EncodedList.written
    monkeypatch.setattr(
        EncodedList, "written", lambda self, room=None: rooms.append(room) or written(self, room)
    )
    monkeypatch.setattr(window_module, "_LARGE_NBYTES", 8192)
    values = torch.randn(8192)
    for limit_nbytes, is_waited_for in ((1 << 20, False), (4096, True)):
        rooms.clear()
        entry = _entry(values.clone())
        window = Window(limit_nbytes, CODECS["rms"])
        window.add(entry, entry.form.restored())
        window.flush()
        assert isinstance(entry.form, WindowPayloads) == is_waited_for
        # room for payloads of any size is written to without waiting
        assert (rooms == []) == is_waited_for
        assert torch.equal(entry.restored(), CODECS["rms"].unpack(CODECS["rms"].pack(values)))


def test_the_window_grows_with_what_a_step_encodes(gpu, monkeypatch) -> None:
    limits = []
    make = Window.__init__
    monkeypatch.setattr(
        Window, "__init__",
        lambda self, nbytes, *codec, **options: limits.append(nbytes) or make(self, nbytes, *codec, **options),
    )  # fmt: skip
    monkeypatch.setattr(compression_module, "_LEAST_WINDOW_NBYTES", 1024)
    model, x = _mlp(), torch.randn(256, 32)
    compression = activations.compressed(CODECS["group4"])
    for _ in range(2):
        gradients(model, model, x, compression)
    coded_nbytes = compression.report().forms["group4"].original_nbytes
    assert limits == [1024, coded_nbytes // 32]
    assert coded_nbytes // 32 > 1024


def test_values_that_two_functions_saved_are_decoded_once(monkeypatch) -> None:
    decoded = []
    restored = PackedForm.restored
    monkeypatch.setattr(PackedForm, "restored", lambda self: decoded.append(self) or restored(self))
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
    )
    x = torch.randn(256, 64, requires_grad=True)
    compression = activations.compressed(CODECS["rms"])
    with compression:
        out = model(x)
    loss = out.square().sum()
    loss.backward(retain_graph=True)
    # two outputs of ReLU, which the next linear layers save too
    assert len(decoded) == len({id(one) for one in decoded}) == 2
    first = x.grad.clone()
    x.grad = None
    loss.backward()
    assert torch.equal(x.grad, first)
    del loss, out
    gc.collect()
    assert compression.report().live_nbytes == 0
