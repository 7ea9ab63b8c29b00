from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from tersor.api import compress
from tersor.bench.kernels import suite as kernels
from tersor.bench.kernels import variants
from tersor.bench.kernels.config import DEVICE_CODECS, Group, KernelsConfig
from tersor.bench.kernels.device_inputs import DEVICE_INPUTS, make_device_input
from tersor.bench.kernels.operations.plan import OPERATIONS
from tersor.bench.kernels.suite import run_kernels
from tersor.bench.kernels.variants import takes_bound
from tersor.bench.peers import DEVICE_PEERS
from tersor.cli import main
from tersor.errors import SpecError
from tersor.types import Bound

CPU = torch.device("cpu")


def test_the_plan_for_cuda_has_its_own_inputs_sizes_codecs_peers_and_ten_rounds():
    config = KernelsConfig.for_device("cuda")
    assert config.inputs == DEVICE_INPUTS
    assert config.codecs_of("gradients") == DEVICE_CODECS
    assert config.peers == tuple(DEVICE_PEERS)
    assert config.threads == (1,)
    assert config.rounds >= 10
    sizes = {(group.input, group.nbytes) for group in config.groups()}
    assert sizes == {
        ("embeddings", 26 * 65536 * 64 * 4),
        ("chunks", 26 * 8 * 64 * 64 * 4),
        ("tensor", 2**28),
        ("tensor-bf16", 2**27),
        ("tensor-f16", 2**27),
        ("tensor-field", 2**28),
        ("lookups-2048", 26 * 2048 * 64 * 4),
        ("lookups-256", 26 * 256 * 64 * 4),
        *((name, nbytes) for name in DEVICE_INPUTS[8:] for nbytes in (2**26, 2**30)),
    }
    for codec in (name for one in DEVICE_INPUTS for name in config.codecs_of(one)):
        takes_bound(codec)


def test_an_input_has_codecs_of_its_own_unless_some_are_asked_for():
    config = KernelsConfig.for_device("cuda")
    assert "auto-compress" in config.codecs_of("tensor")
    assert "rows-batch" in config.codecs_of("lookups-256")
    config = KernelsConfig.for_device("cuda", codecs=("flat",))
    assert config.codecs_of("tensor") == config.codecs_of("gradients") == ("flat",)
    config = KernelsConfig.for_device("cuda", codecs=())
    assert config.codecs_of("tensor") == ()


def test_the_plan_for_the_cpu_is_the_default_one():
    assert KernelsConfig.for_device("cpu") == KernelsConfig(operations=tuple(OPERATIONS))


def test_what_is_asked_for_replaces_a_default_of_the_device():
    config = KernelsConfig.for_device("cuda", inputs=("field",), threads=(1, 2))
    usual = KernelsConfig.for_device("cuda")
    assert config == dataclasses.replace(usual, inputs=("field",), operations=())


def test_operations_are_chosen_by_the_names_of_codecs():
    config = KernelsConfig.for_device("cpu", codecs=("add4", "flat", "difference4"))
    assert (config.codecs, config.operations) == (("flat",), ("add4", "difference4"))
    config = KernelsConfig.for_device("cuda", codecs=("groups",), peers=())
    assert (config.codecs, config.operations) == ((), tuple(OPERATIONS))
    assert config.groups() == [], "no input is made for codecs that are not measured"
    assert KernelsConfig.for_device("cpu", codecs=("flat",)).operations == ()
    assert KernelsConfig.for_device("cuda").operations == tuple(OPERATIONS)


def test_an_operation_without_its_input_is_refused():
    with pytest.raises(SpecError, match="add4 is measured on gradients; add gradients"):
        KernelsConfig.for_device("cpu", codecs=("add4",), inputs=("field",))


def test_smoke_is_small_on_every_device():
    for device in ("cpu", "cuda"):
        config = KernelsConfig.for_device(device).smoke()
        assert {group.nbytes for group in config.groups()} == {2**20}
        assert config.rounds == 1


def test_a_group_says_its_size_and_bound():
    assert Group("field", 2**30, 0.01).label == "field, 1024 MiB, relative bound 0.01"
    assert Group("field", 2**26, None).label == "field, 64 MiB"


def test_an_input_of_the_cpu_alone_is_refused_on_cuda():
    with pytest.raises(SpecError, match="for cuda"):
        KernelsConfig.for_device("cuda", inputs=("embeddings-dim32",)).groups()


def test_variants_are_measured_by_the_suite():
    config = KernelsConfig(
        inputs=("gradients",),
        bounds=(0.03,),
        codecs=("flat-absolute", "group4-hadamard"),
        peers=(),
        threads=(1,),
        sizes=(2**16,),
        rounds=1,
    )
    outcome = run_kernels(config)
    assert [row.codec for row in outcome.rows] == ["flat-absolute", "group4-hadamard"]
    assert outcome.rows[0].spec["given"] == "absolute"
    assert outcome.rows[0].relative_bound == 0.03
    assert outcome.rows[1].spec["hadamard"] is True
    assert {row.copy_s for row in outcome.rows} == {None}
    assert {row.num_launches for row in outcome.rows} == {None}


def test_a_codec_that_does_not_fit_in_memory_is_one_note(monkeypatch):
    def full(*_arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore lines")

    monkeypatch.setattr("tersor.bench.core.outcome.run_trial", full)
    config = KernelsConfig(inputs=("gradients",), codecs=("flat",), peers=(), threads=(1,))
    outcome = run_kernels(dataclasses.replace(config, sizes=(2**16,)))
    assert outcome.rows == []
    assert outcome.notes == ["flat is left out: CUDA out of memory. Tried to allocate"]


def test_without_a_cuda_device_the_command_says_so_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "kernels", "--device", "cuda", "--smoke"]) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "tersor: torch finds no CUDA device here; use --device cpu\n"


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Let all that follows from the name of the device be done, with its tensors on the CPU."""
    there = SimpleNamespace(device=lambda name: torch.device("cpu"))
    monkeypatch.setattr(kernels, "torch", there)
    monkeypatch.setattr(Group, "make", lambda g, _: make_device_input(g.input, g.nbytes, CPU))


def test_every_codec_of_cuda_and_its_peers_give_a_row(nvcomp, on_the_cpu):
    peers = ("copy", "nvcomp-ans", "nvcomp-ans-codes", "nvcomp-snappy")
    config = KernelsConfig.for_device("cuda", inputs=("gradients",), bounds=(0.03,), peers=peers)
    outcome = run_kernels(dataclasses.replace(config, sizes=(2**16,), rounds=1, warmup=0))
    assert outcome.refusals == []
    # the fake has one algorithm that it refuses
    assert [note.split()[0] for note in outcome.notes] == ["nvcomp-snappy"]
    codecs = {*DEVICE_CODECS, *peers[:3], "huffman-codes"}
    assert {row.codec for row in outcome.rows} == {*codecs, *OPERATIONS}
    assert {row.device for row in outcome.rows} == {"cuda"}
    assert all(row.bound_held in (True, None) for row in outcome.rows)


def test_every_input_of_a_user_s_calls_gives_a_row_of_each_of_its_codecs_and_of_nvcomp(
    nvcomp, on_the_cpu
):
    inputs = [name for name in DEVICE_INPUTS if name.startswith(("tensor", "lookups"))]
    peers = ("copy", "nvcomp-ans", "nvcomp-ans-codes")
    config = KernelsConfig.for_device("cuda", inputs=tuple(inputs), peers=peers)
    outcome = run_kernels(dataclasses.replace(config, sizes=(2**16,), rounds=1, warmup=0))
    assert outcome.refusals == []
    # levels of two-byte floats are numbers of theirs, so that every value has a code
    assert outcome.notes == []
    found = {(row.input, row.codec) for row in outcome.rows}
    assert found == {(i, name) for i in inputs for name in (*config.codecs_of(i), *peers)}
    assert all(row.bound_held in (True, None) for row in outcome.rows)
    bounds = {(row.input, row.relative_bound) for row in outcome.rows if not row.peer}
    assert bounds == {(i, 1e-3 if i.startswith("tensor") else 0.03) for i in inputs}


def test_the_default_codec_s_row_is_made_through_compress_by_name(monkeypatch, on_the_cpu):
    asked = []

    def spy(x, bound, **options):
        asked.append((tuple(x.shape), bound, options))
        return compress(x, bound, **options)

    monkeypatch.setattr(variants, "compress", spy)
    codecs = ("auto-compress", "delta3-compress")
    config = KernelsConfig.for_device("cuda", inputs=("tensor-field",), codecs=codecs, peers=())
    rows = run_kernels(dataclasses.replace(config, sizes=(2**16,), rounds=1, warmup=0)).rows
    assert [row.codec for row in rows] == list(codecs)
    calls = [options for _, bound, options in asked if bound == Bound.relative(1e-3)]
    assert calls.count({"codec": "auto"}) == calls.count({"codec": "delta", "lorenzo": 3}) > 0
    assert len(calls) == len(asked)


@pytest.mark.gpu
def test_on_cuda_every_row_of_a_user_s_calls_has_both_times_and_its_peak_of_memory():
    inputs = ("tensor", "tensor-bf16", "tensor-f16", "tensor-field", "lookups-256", "chunks")
    config = KernelsConfig.for_device("cuda", inputs=inputs, peers=("copy", "launch-copy-graph"))
    outcome = run_kernels(config.smoke())
    assert outcome.refusals == []
    assert {row.input for row in outcome.rows} == {"copy", *inputs}
    for row in outcome.rows:
        assert row.clock == "loop"
        assert row.lead.encode_s.p50 > 0
        assert row.lead.decode_s.p50 > 0
        assert set(row.workspace_nbytes) == {"encode", "decode"}
        if not row.peer and not row.codec.endswith("-graph"):
            assert row.workspace_nbytes["encode"] >= row.encoded_nbytes
