"""What a user prints is short, says what it is, and shows no values of tensors."""

from __future__ import annotations

import torch

import tersor
from tersor import Bound
from tersor.sites import activations, embeddings

X = torch.zeros(4, 250)


def test_a_bound_and_a_codec_show_the_call_that_makes_them() -> None:
    bound = Bound.relative(1e-3)
    assert repr(bound) == "Bound.relative(0.001)"
    assert repr(Bound.absolute(2)) == "Bound.absolute(2.0)"
    codec = tersor.create("rows", bound=bound)
    assert repr(codec) == "Rows(bound=Bound.relative(0.001), entropy='huffman')"
    assert eval(repr(bound), {"Bound": Bound}) == bound


def test_a_packed_tensor_shows_what_it_is_and_how_small() -> None:
    packed = tersor.compress(X, codec="half")
    assert repr(packed) == (
        f"Packed(TensorInfo(shape=(4, 250), dtype=torch.float32), Half(), {packed.nbytes:,} bytes, ratio {packed.ratio:.2f})"
    )
    bounded = tersor.compress(torch.arange(1000.0), Bound.absolute(0.5), codec="flat")
    assert repr(bounded).endswith(f"ratio {bounded.ratio:.2f}, error at most 0.5)")
    assert "tensor(" not in repr(bounded)


def test_a_batch_shows_its_size() -> None:
    codec = tersor.create("half")
    one, two = (tersor.encode_batch([X] * count, [codec] * count) for count in (1, 2))
    nbytes = [sum(payload.numel() for payload in batch.payloads()) for batch in (one, two)]
    assert repr(one) == f"Batch(1 tensor, {nbytes[0]:,} bytes)"
    assert repr(two) == f"Batch(2 tensors, {nbytes[1]:,} bytes)"
    assert repr(two.trimmed()) == repr(two)


def test_files_show_their_name_and_what_they_hold(tmp_path) -> None:
    path = tmp_path / "x.tsr"
    with tersor.Writer(path) as writer:
        writer.add("x", X, tersor.create("raw"))
        assert repr(writer) == f"Writer({str(path)!r}, 1 array)"
    assert repr(writer).endswith("1 array, closed)")
    with tersor.Reader(path) as reader:
        assert repr(reader) == f"Reader('{path}', 1 array)"
    with path.open("rb") as file, tersor.Reader(file) as reader:
        assert repr(reader) == "Reader(a stream, 1 array)"


def test_contexts_and_exchanges_show_how_they_compress() -> None:
    compiled = repr(activations.compiled("group8"))
    assert compiled == "CompiledCompression(Group8(group=128, seed=None, hadamard=False))"
    with embeddings.Exchange([0, 0], 16, codec="half", backward="group8") as exchange:
        assert (
            repr(exchange) == "Exchange(2 tables, rank 0 of 1, rows by half, gradients by group8)"
        )
    assert repr(exchange).endswith("closed)")


def test_a_report_shows_its_main_numbers() -> None:
    compression = activations.compressed(step=0.5)
    with compression:
        torch.tanh(torch.randn(64, 64, requires_grad=True) * 1.0)
    report = compression.report()
    shown = f"ActivationReport(1 forward pass, codec rms at 0.5, {report.ratio:.2f} times smaller)"
    assert repr(report) == shown
