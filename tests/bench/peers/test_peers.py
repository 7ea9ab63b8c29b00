from __future__ import annotations

import sys

import pytest
import torch

from tersor.bench.core.candidate import HuffmanCodes
from tersor.bench.core.inputs import make_input
from tersor.bench.core.roundtrip import worst_error
from tersor.bench.core.subject import Subject
from tersor.bench.core.trial import run_trial
from tersor.bench.peers import PEERS, load_peer, load_peers
from tersor.errors import BackendUnavailableError, SpecError


def loaded(name):
    try:
        return load_peer(name)
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("relative_bound", [0.05, 0.001])
@pytest.mark.parametrize("made", ["embeddings", "activations", "field"])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_decodes_within_the_bound_it_was_given(name, made, relative_bound):
    peer = loaded(name)
    subject = Subject.of(make_input(made, 2**19), relative_bound)
    trial = run_trial(peer, subject, threads=1)
    assert trial.failure is None
    assert not trial.broken
    assert trial.encoded_nbytes > 0
    assert peer.version != "unknown"


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("pcodec", "pcodec", r"tersor\[peers\]"),
        ("fbgemm8", "fbgemm_gpu", "fbgemm-gpu-cpu"),
        ("blosc2", "blosc2", r"tersor\[peers\]"),
        ("sz3", "pysz", r"tersor\[fields\]"),
        ("zfp", "zfpy", r"tersor\[fields\]"),
    ],
)
def test_a_missing_peer_is_one_line_that_says_what_to_install(name, package, install, monkeypatch):
    monkeypatch.delitem(sys.modules, PEERS[name].partition(":")[0], raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendUnavailableError, match=install) as caught:
        load_peer(name)
    assert "\n" not in str(caught.value)
    peers, absent = load_peers(["memcpy", name], "cpu")
    assert [peer.name for peer in peers] == ["memcpy"]
    assert absent == [f"left out: {name}: {caught.value}"]


@pytest.mark.parametrize("name", ["lz4", "zstd", "blosc2", "pcodec"])
def test_values_a_code_cannot_hold_come_back_exactly(name):
    peer = loaded(name)
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, 0.3])
    encoded = peer.encode(x, 0.1)
    out = peer.decode(encoded, torch.zeros_like(x))
    assert worst_error(x, out) <= 0.1
    assert out[3] == x[3]
    # four outliers: position and value each
    assert peer.nbytes(encoded) >= 4 * 12


@pytest.mark.parametrize("made", ["embeddings", "activations", "field"])
def test_zstd_huffman_finds_no_matches_even_where_rows_repeat(made):
    peer = loaded("zstd-huffman")
    subject = Subject.of(make_input(made, 2**21), 0.01)
    trial = run_trial(peer, subject, threads=1)
    assert subject.entropy_bits is not None
    entropy_nbytes = subject.entropy_bits * sum(one.numel() for one in subject.codes) / 8
    # Matches would halve the size of the embeddings and the field. From the entropy itself, tables
    # that follow the data block by block gain, and whole-bit codes lose, a few per cent at most.
    assert 0.95 < trial.encoded_nbytes / entropy_nbytes < 1.05


@pytest.mark.parametrize("relative_bound", [0.05, 0.001])
def test_our_huffman_kernel_returns_the_codes_it_is_compared_on(relative_bound, monkeypatch):
    monkeypatch.setattr(HuffmanCodes, "__init__", lambda candidate: None)
    subject = Subject.of(make_input("field", 2**18), relative_bound)
    trial = run_trial(HuffmanCodes(), subject, threads=1)
    assert not trial.broken
    assert trial.error_bound == 0.0


def test_an_unknown_peer_is_refused_with_the_known_ones():
    with pytest.raises(SpecError, match="sz3"):
        load_peer("sz4")
