from __future__ import annotations

import pytest
import torch

from tersor.bench import peers
from tersor.bench.core import timing
from tersor.bench.core.row_file import RowFile, read_rows
from tersor.bench.kernels import suite as kernels
from tersor.bench.kernels.config import DEFAULT_CODECS, KernelsConfig
from tersor.bench.kernels.suite import run_kernels
from tersor.bench.peers.memcpy import Memcpy
from tersor.codecs import registry
from tersor.errors import SpecError, UnknownCodecError
from tersor.types import Bound
from tests.bench.planted import Exact, Idle, IdleRate, JustOver


@pytest.fixture(autouse=True)
def _planted_codecs(monkeypatch):
    for codec in (Exact, JustOver, Idle, IdleRate):
        monkeypatch.setitem(registry._codecs, codec.codec_id, codec)


def small(**changes):
    plan = {
        "inputs": ("gradients",),
        "bounds": (0.03,),
        "codecs": ("test-exact",),
        "peers": (),
        "threads": (1,),
        "sizes": (2**16,),
        "rounds": 1,
    }
    return KernelsConfig(**(plan | changes))


def test_smoke_measures_every_codec_and_peer_within_its_bound():
    config = KernelsConfig(bounds=(0.03,)).smoke()
    outcome = run_kernels(config)
    assert outcome.refusals == []
    loaded, absent = peers.load_peers(tuple(peers.PEERS), "cpu")
    assert outcome.notes == absent
    assert len(loaded) >= len(peers.PEERS) - 2, "more is missing than FBGEMM's two"
    measured = {(row.input, row.codec, row.peer) for row in outcome.rows}
    for name in config.inputs:
        assert {(name, codec, False) for codec in DEFAULT_CODECS} <= measured
        assert {(name, peer.name, True) for peer in loaded} <= measured
    assert all(row.bound_held in (True, None) for row in outcome.rows)
    assert {row.threads for row in outcome.rows if not row.peer} == {1, 2}
    assert {row.threads for row in outcome.rows if row.peer} == {1}


def test_the_clock_is_one_for_as_many_tensors_as_an_input_has(monkeypatch):
    asked = []

    def spy(device, *, has_many_tensors):
        asked.append(has_many_tensors)
        return timing.clocks_of(device, has_many_tensors=has_many_tensors)

    monkeypatch.setattr(kernels, "clocks_of", spy)
    monkeypatch.setattr(kernels, "_MANY_TENSORS", 1)
    run_kernels(small(inputs=("embeddings", "gradients"), sizes=(2**20,)))
    assert asked == [True, False]


def test_what_the_first_calls_compile_is_in_no_row(monkeypatch):
    compiled, slow = set(), []

    class Compiling(Exact):
        """Takes an hour at its first encode and its first decode at each number of threads."""

        def _compile(self, name):
            key = (name, torch.get_num_threads())
            slow.extend([3600.0] * (key not in compiled))
            compiled.add(key)

        def write(self, x, error_bound):
            self._compile("encode")
            return Exact.write(self, x, error_bound)

        def read(self, payload, out):
            self._compile("decode")
            Exact.read(self, payload, out)

    class Clock:
        kind = "host"

        def seconds(self, task):
            slow.clear()
            task()
            return 1.0 + sum(slow)

    monkeypatch.setitem(registry._codecs, Exact.codec_id, Compiling)
    monkeypatch.setattr(kernels, "clocks_of", lambda *_, **__: timing.Clocks(Clock()))
    rows = run_kernels(small(threads=(1, 2), warmup=0)).rows
    assert len(compiled) == 4
    assert [(row.threads, row.encode_s.p80, row.decode_s.p80) for row in rows] == [
        (1, 1.0, 1.0),
        (2, 1.0, 1.0),
    ]


@pytest.mark.parametrize("codec", [JustOver, Idle])
def test_no_speed_is_reported_for_a_codec_that_breaks_the_bound(codec):
    config = small(codecs=("test-exact", codec.codec_id))
    outcome = run_kernels(config)
    assert [row.codec for row in outcome.rows] == ["test-exact"]
    assert len(outcome.refusals) == 1
    assert codec.codec_id in outcome.refusals[0]


def test_no_speed_is_reported_for_a_codec_without_a_bound_that_decodes_nothing():
    outcome = run_kernels(small(codecs=("test-exact", "test-idle-rate")))
    assert [row.codec for row in outcome.rows] == ["test-exact"]
    assert outcome.refusals == []
    (sentence,) = outcome.notes
    assert sentence.startswith("test-idle-rate on gradients is left out: it lost values")


def test_no_speed_is_reported_for_a_copy_that_changes_anything(monkeypatch):
    def copy(self, x, out):
        out.copy_(x)
        out.view(-1)[0] += 1e-3

    monkeypatch.setattr(Memcpy, "copy", copy)
    outcome = run_kernels(small(peers=("memcpy",)))
    assert [row.codec for row in outcome.rows] == ["test-exact"]
    (sentence,) = outcome.refusals
    assert "memcpy on gradients is refused" in sentence
    assert sentence.endswith("where 0 was promised")


def test_the_bound_is_broken_only_just():
    """Keeps the planted fault honest: a factor of 1.0001 of slack would let it pass."""
    codec = JustOver(bound=Bound.relative(0.03))
    x = torch.linspace(-1, 1, 1000)
    error = float((codec.unpack(codec.pack(x)).double() - x.double()).abs().max())
    assert 1 < error / (0.03 * 2) < 1.0001


def test_a_missing_peer_is_one_note(monkeypatch):
    known = {**peers.PEERS, "absent": "tersor_no_such_package:Peer"}
    monkeypatch.setattr(peers, "PEERS", known)
    outcome = run_kernels(small(peers=("absent", "memcpy")))
    assert [row.codec for row in outcome.rows] == ["test-exact", "memcpy"]
    assert len(outcome.notes) == 1
    assert "absent" in outcome.notes[0]


def test_unknown_names_are_refused():
    with pytest.raises(UnknownCodecError, match="no-such"):
        run_kernels(small(codecs=("no-such",)))
    with pytest.raises(SpecError, match="no-such"):
        run_kernels(small(peers=("no-such",)))
    with pytest.raises(SpecError, match="no-such"):
        run_kernels(small(inputs=("no-such",)))


@pytest.mark.parametrize(
    "wrong", [{"device": "tpu"}, {"inputs": ()}, {"threads": (0,)}, {"bounds": (0.0,)}]
)
def test_an_impossible_plan_is_refused(wrong):
    with pytest.raises(SpecError):
        small(**wrong)


def test_a_resumed_run_measures_only_what_is_missing(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path) as file:
        run_kernels(small(), done=file.keys, on_row=file.append)
    with RowFile(path, resume=True) as file:
        again = run_kernels(small(bounds=(0.03, 0.05)), done=file.keys, on_row=file.append)
    assert [row.relative_bound for row in again.rows] == [0.05]
    assert [row.relative_bound for row in read_rows(path)] == [0.03, 0.05]


def test_an_interrupt_keeps_the_finished_rows(tmp_path):
    def interrupt(index, count, label):
        if index == 1:
            raise KeyboardInterrupt

    path = tmp_path / "rows.jsonl"
    config = small(bounds=(0.03, 0.05))
    with RowFile(path) as file, pytest.raises(KeyboardInterrupt):
        run_kernels(config, on_row=file.append, on_group=interrupt)
    assert [row.relative_bound for row in read_rows(path)] == [0.03]


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    run_kernels(small(threads=(1, 2)))
    assert torch.get_num_threads() == before


def test_slow_peers_are_timed_on_a_marked_sample_but_sized_in_full():
    pytest.importorskip("zfpy")
    config = small(inputs=("embeddings",), peers=("zfp", "zstd"), codecs=(), sizes=(2**23,))
    rows = {row.codec: row for row in run_kernels(config).rows}
    assert rows["zfp"].sampled_fraction == 3 / 16
    assert rows["zstd"].sampled_fraction == 1.0
    assert rows["zfp"].original_nbytes == 2**23


def test_progress_is_reported_from_none_to_all():
    seen = []
    run_kernels(small(), on_group=lambda *step: seen.append(step))
    assert seen[0][:2] == (0, 2)
    assert seen[-1][:2] == (2, 2)


def test_each_row_says_where_it_comes_from():
    (row,) = run_kernels(small()).rows
    # a build with CUDA adds its version behind a plus sign
    assert row.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert row.machine["cores"] >= 1
    assert set(row.machine) <= {"cpu", "cores", "memory_gib", "gpu", "gpu_memory_gib"}
    assert row.git_commit
    assert row.spec["bound"] == {"relative": 0.03}
