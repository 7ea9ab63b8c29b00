"""FBGEMM's row-wise operators as a peer; the package is only in this environment."""

from __future__ import annotations

import pytest
import torch

from tersor.bench.core.inputs import make_input
from tersor.bench.core.subject import Subject
from tersor.bench.core.trial import run_trial
from tersor.bench.peers import load_peer


@pytest.mark.parametrize("made", ["embeddings", "gradients", "activations", "field"])
@pytest.mark.parametrize("bits", [8, 4])
def test_every_value_is_within_half_a_step_of_its_row(bits, made):
    peer = load_peer(f"fbgemm{bits}")
    subject = Subject.of(make_input(made, 2**20), None)
    trial = run_trial(peer, subject, threads=1)
    # a row's own step is at most that of the whole slice; float16 scales and offsets, with 11 bits,
    # add a thousandth of the largest magnitude for each
    widest = max(float(x.max() - x.min()) for x in subject.slices)
    largest = max(float(x.abs().max()) for x in subject.slices)
    slack = largest * 2**-9 if bits == 4 else largest * 2**-20
    assert 0 < trial.worst_error <= widest / (2**bits - 1) / 2 + slack
    assert trial.error_bound is None
    assert peer.version == "1.8.0"


@pytest.mark.parametrize(("bits", "row_nbytes"), [(8, 64 + 8), (4, 32 + 4)])
def test_a_look_up_is_one_row_with_its_scale_and_offset(bits, row_nbytes):
    peer = load_peer(f"fbgemm{bits}")
    assert peer.nbytes(peer.encode(torch.randn(10, 64), 0.0)) == 10 * row_nbytes


def test_other_tensors_are_cut_into_rows_of_128():
    peer = load_peer("fbgemm8")
    assert peer.nbytes(peer.encode(torch.randn(256 * 128), 0.0)) == 256 * (128 + 8)
    odd = torch.randn(1000)
    assert peer.nbytes(peer.encode(odd, 0.0)) == 1000 + 8
    assert peer.decode(peer.encode(odd, 0.0), torch.empty_like(odd)).shape == odd.shape
