"""Whatever torch makes tensors on by default, work on CPU tensors stays on the CPU."""

from __future__ import annotations

import pytest
import torch

import tersor
from tersor import Bound, use_backend
from tersor.codecs import registry
from tests.checks import assert_within_bound


@pytest.fixture
def elsewhere():
    """Make torch's default a device on which nothing can be computed."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.fixture
def x(generator) -> torch.Tensor:
    rows = torch.randn(50, 16, generator=generator, device="cpu")
    return rows.repeat(4, 1)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("codec", [one for one in registry.codec_ids() if one != "auto"])
def test_every_codec_goes_there_and_back(codec, backend, x, elsewhere):
    bound = Bound.relative(0.01) if registry.get(codec).takes_bound() else None
    with use_backend(backend):
        packed = tersor.compress(x, bound, codec=codec)
        found = tersor.decompress(packed)
    assert found.device.type == "cpu"
    if bound is not None:
        assert_within_bound(x, found, packed.error_bound)


def test_files_and_batches_too(tmp_path, x, elsewhere):
    tersor.save(tmp_path / "x.tsr", {"x": x}, Bound.relative(0.01))
    assert tersor.load(tmp_path / "x.tsr")["x"].device.type == "cpu"
    codecs = [tersor.create("rows", bound=Bound.relative(0.01)), tersor.create("group8")]
    batch = tersor.encode_batch([x, x], codecs)
    found = tersor.decode_batch(batch, [tersor.TensorInfo.of(x)] * 2, codecs)
    assert [one.device.type for one in found] == ["cpu", "cpu"]
