"""The adapter of nvCOMP and our device variants, without nvCOMP and without a device."""

from __future__ import annotations

import sys

import pytest
import torch

from tersor.bench.core.subject import Subject
from tersor.bench.core.trial import run_trial
from tersor.bench.kernels.device_inputs import make_device_input
from tersor.bench.kernels.variants import VARIANTS, make_candidate, takes_bound
from tersor.bench.peers import DEVICE_PEERS, load_peer, load_peers
from tersor.bench.peers.code_lists import ListQuantizer
from tersor.errors import BackendUnavailableError, SpecError, UnknownCodecError
from tersor.kernels.quantize import Grid
from tersor.kernels.quantize.reference import bounded_quantize
from tests.bench.peers import fake_nvcomp

CPU = torch.device("cpu")


def small(name="embeddings", nbytes=2**18):
    return make_device_input(name, nbytes, CPU)


@pytest.mark.parametrize("relative_bound", [0.03, 0.001])
@pytest.mark.parametrize("name", ["nvcomp-ans", "nvcomp-ans-codes", "nvcomp-bitcomp"])
def test_codes_go_through_nvcomp_and_come_back_within_the_bound(nvcomp, name, relative_bound):
    peer = load_peer(name, "cuda")
    trial = run_trial(peer, Subject.of(small(), relative_bound), threads=1)
    assert peer.name == name
    assert not trial.broken
    assert 0 < trial.encoded_nbytes < small().nbytes
    assert trial.workspace_nbytes is None


def test_what_nvcomp_refuses_is_one_sentence(nvcomp):
    peer = load_peer("nvcomp-snappy", "cuda")
    with pytest.raises(BackendUnavailableError, match=r"Snappy failed: planted: cannot do this$"):
        run_trial(peer, Subject.of(small(), 0.03), threads=1)


def test_without_nvcomp_all_its_peers_are_one_note(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", None)
    loaded, notes = load_peers(tuple(DEVICE_PEERS), "cuda")
    assert [peer.name for peer in loaded] == ["copy", "launch-copy", "launch-copy-graph"]
    assert len(notes) == 1
    assert "nvcomp-zstd" in notes[0]
    assert "install nvidia-nvcomp-cu13" in notes[0]
    assert "\n" not in notes[0]


def test_an_nvcomp_without_batches_is_reported_to_be_too_old(monkeypatch):
    monkeypatch.delattr(fake_nvcomp, "BatchArray")
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", fake_nvcomp)
    with pytest.raises(BackendUnavailableError, match="older than 6"):
        load_peer("nvcomp-ans", "cuda")


def test_peers_of_one_device_are_unknown_on_the_other():
    with pytest.raises(SpecError, match="nvcomp-ans"):
        load_peer("sz3", "cuda")
    with pytest.raises(SpecError, match="sz3"):
        load_peer("nvcomp-ans", "cpu")


@pytest.mark.parametrize(("error_bound", "dtype"), [(0.1, torch.int8), (0.001, torch.int16)])
def test_a_list_has_the_codes_that_its_tensors_have(error_bound, dtype, generator):
    xs = [torch.randn(n, generator=generator) for n in (1, 4096, 5000)]
    made = ListQuantizer().quantize(xs, [error_bound] * 3)
    assert made.codes.dtype == dtype
    grid = Grid.for_bound(error_bound, torch.float32)
    for x, codes in zip(xs, made.parts(), strict=True):
        assert torch.equal(codes.to(torch.int32), bounded_quantize(x, grid)[0])
    outs = [torch.full_like(x, torch.nan) for x in xs]
    made.dequantize(outs)
    for x, out in zip(xs, outs, strict=True):
        assert float((x.double() - out.double()).abs().max()) <= error_bound


@pytest.mark.parametrize("value", [float("nan"), 1e6])
def test_a_list_with_a_value_that_has_no_code_is_left_out(value):
    quantizer = ListQuantizer()
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match=r"1 values of float32 have no int"):
            quantizer.quantize([torch.tensor([0.5, value])], [0.01])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_keeps_its_promise(name):
    relative_bound = 0.03 if takes_bound(name) else None
    candidate = make_candidate(name, relative_bound)
    assert candidate.name == name
    assert not candidate.peer
    trial = run_trial(candidate, Subject.of(small(nbytes=2**16), relative_bound), threads=1)
    assert trial.failure is None
    assert 0 < trial.encoded_nbytes < small(nbytes=2**16).nbytes


def test_variants_of_one_codec_differ_in_their_specs():
    options = [make_candidate(name, 0.03).options() for name in ("flat", "flat-absolute")]
    assert options[0] != options[1]
    assert make_candidate("group4-hadamard", None).options()["hadamard"] is True


def test_an_unknown_variant_is_refused():
    with pytest.raises(UnknownCodecError, match="flat-nope"):
        takes_bound("flat-nope")
