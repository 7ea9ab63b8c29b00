"""The report says what was saved, in which form, and what it cost."""

from __future__ import annotations

import gc
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn

from tersor import Bound, SpecError
from tersor.sites import activations
from tersor.sites.activations import compression as compression_module


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())


def test_bytes_are_those_of_the_tensors_that_autograd_saves_once() -> None:
    compression = activations.compressed("raw")
    x = torch.randn(128, 64)
    with compression:
        out = _model()(x)
    report = compression.report()
    # two outputs of ReLU; the first is also the input of a layer, the input is the caller's
    assert report.forms["raw"].num_tensors == 2
    assert report.original_nbytes == report.held_nbytes == 2 * x.nbytes
    assert report.live_nbytes == report.held_nbytes
    assert (report.num_duplicates, report.duplicate_nbytes) == (1, x.nbytes)
    assert report.forms["held by others"].original_nbytes == x.nbytes
    out.sum().backward()
    assert compression.report().live_nbytes == 0
    # what the step held is still to be read
    assert compression.report().held_nbytes == 2 * x.nbytes


def test_a_compression_is_shown_as_the_call_that_makes_it() -> None:
    assert repr(activations.compressed("rms", step=0.5)) == "Compression(codec='rms', step=0.5)"


def test_the_table_scalars_and_json_have_its_numbers() -> None:
    compression = activations.compressed(bound=Bound.relative(0.01))
    with compression:
        out = _model()(torch.randn(128, 64))
    report = compression.report()
    assert "ans" in str(report)
    assert f"{report.ratio:.2f}" in str(report)
    assert report.scalars()["activations/ratio"] == report.ratio > 1
    config = json.loads(json.dumps(report.to_config()))
    assert config["held_nbytes"] == report.held_nbytes
    # the outputs of ReLU, and the input, which nobody else holds
    assert config["forms"]["ans"]["num_tensors"] == 3
    out.sum().backward()


def test_report_is_that_of_the_compression_entered_last(monkeypatch) -> None:
    monkeypatch.setattr(compression_module, "_last", None)
    with pytest.raises(SpecError, match="no compression"):
        activations.report()
    first, second = activations.compressed("raw"), activations.compressed("group4")
    for compression in (second, first):
        with compression:
            _model()(torch.randn(128, 64))
    assert activations.report().codec == "raw"
    del first, compression
    gc.collect()
    # as behind "with activations.compressed(...):"
    assert activations.report().codec == "raw"


def test_one_step_and_one_tensor_are_said_in_the_singular() -> None:
    compression = activations.compressed("raw")
    model, x = _model(), torch.randn(128, 64)
    for title in (
        "1 forward pass, codec raw; the last one saved 1 tensor twice",
        "2 forward passes, codec raw;",
    ):
        with compression:
            model(x).sum().backward()
        assert str(compression.report()).startswith(title)


@pytest.fixture
def _frequent_switches():
    """Let the interpreter switch between threads about every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_frequent_switches")
def test_a_report_may_be_taken_while_a_step_runs() -> None:
    # forms come and go: those of tensors that wait for their encoding, and of ones that turn out to be held by others
    parts = (nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64), nn.ReLU(), nn.Softmax(-1))
    model, x = nn.Sequential(*parts * 10), torch.randn(64, 64)
    compression, is_over = activations.compressed(step=0.5), Event()

    def watch() -> int:
        num_reports = 0
        while not is_over.is_set():
            assert compression.report().scalars()
            num_reports += 1
        return num_reports

    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(watch)
        try:
            for _ in range(30):
                with compression:
                    out = model(x)
                out.sum().backward()
        finally:
            is_over.set()
    assert watching.result() > 10
