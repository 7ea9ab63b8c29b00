"""After ``warmup`` what was named compiles nothing more, on either device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import tersor
from tersor import Bound, TensorInfo, create
from tersor.codecs import get
from tersor.kernels.batch.encoded_list import settled
from tersor.warm_up import default_codecs, default_dtypes
from tests.arch.source_files import REPOSITORY
from tests.triton_device import INTERPRETED

SHAPES = ((7,), (1000,), (1024,), (33, 31), (4, 8, 300))
LISTS = (((100,), (7,)), ((64, 16),) * 3, ((64, 16),) * 4, ((600, 16), (9, 16)), ((10, 10),) * 17)
BOUNDS = (Bound.absolute(0.04), Bound.relative(8e-3))
"""Other ones than a warm-up takes, with as few codes as fused kernels know."""


def codecs_named(codec_id: str, device: str) -> list[tersor.Codec]:
    """Return a codec under a bound of each kind, if it takes one."""
    if not get(codec_id).takes_bound():
        return [create(codec_id, device=device)]
    return [create(codec_id, device=device, bound=bound) for bound in BOUNDS]


def shapes_for(codec: tersor.Codec) -> tuple:
    """Return shapes of single tensors, and of lists; at least 256 rows of widths that ``rows`` is compiled for."""
    if codec.codec_id != "rows":
        return SHAPES, LISTS
    lists = ((640, 16),) * 3, ((600, 16), (9, 16)), ((500, 32),) * 17
    return ((900, 16), (330, 64), (500, 128)), lists


def use(codec: tersor.Codec, dtype: torch.dtype, device: str, shapes=SHAPES, lists=LISTS) -> None:
    """Encode and decode single tensors, lists and short lists, of other values and sizes than a warm-up."""

    def noise(shape):
        return torch.randn(shape, device=device).to(dtype)

    for shape in shapes:
        tersor.decompress(tersor.compress(noise(shape), codec=codec))
    for one in lists:
        xs, used = [noise(shape) for shape in one], [codec] * len(one)
        infos = [TensorInfo.of(x) for x in xs]
        tersor.decode_batch(tersor.encode_batch(xs, used), infos, used)
        tersor.decode_batch(tersor.encode_batch(xs, used).trimmed(), infos, used)


ON_THE_CPU = """
import torch, tersor
from tersor.kernels.runtime.compile_notice import compile_seconds
from tests.test_warm_up import use

(found,) = tersor.warmup(["group8"], [torch.float32])
compiled_s = compile_seconds()
use(tersor.create("group8"), torch.float32, "cpu", [(1,), (1000, 3), (1 << 20,)])
late_s = compile_seconds() - compiled_s
use(tersor.create("group8"), torch.float64, "cpu", [(1000,)])
print(found.compile_s > 0, found.again_s, late_s, compile_seconds() > compiled_s)
"""

ON_CUDA = """
import gc, sys
import torch, tersor
from tests.test_warm_up import codecs_named, shapes_for, use

def num_forms():
    from tersor.kernels.runtime.gpu.launch import Kernel
    kernels = [one for one in gc.get_objects() if isinstance(one, Kernel)]
    return sum(len({id(compiled) for compiled, _ in one._compiled.values()}) for one in kernels)

codecs = codecs_named(sys.argv[1], "cuda")
# the kernels of rows under every kind of bound take minutes to compile
named = codecs[-1] if sys.argv[1] == "rows" else sys.argv[1]
(found,) = tersor.warmup([named], [torch.bfloat16], "cuda")
num_warm = num_forms()
for codec in [named] if sys.argv[1] == "rows" else codecs:
    use(codec, torch.bfloat16, "cuda", *shapes_for(codec))
num_late = num_forms() - num_warm
use(codec, torch.float64, "cuda", (), shapes_for(codec)[1][:1])
print(num_warm > 0, found.again_s, num_late, num_forms() > num_warm)
"""


def _said(script: str, *arguments: str, **env: str) -> list[str]:
    """Return what a new process prints, in which no kernel is compiled or loaded yet."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False,
        timeout=500, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": f"src{os.pathsep}.", **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_on_the_cpu_only_what_was_not_named_compiles_later(tmp_path) -> None:
    found = _said(ON_THE_CPU, NUMBA_CACHE_DIR=str(tmp_path))
    assert found == ["True", "0.0", "0.0", "True"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "codec_id", ["flat", "ans", "rows", "half", "group4", "rms", "mask4", "mask2", "group2"]
)
def test_on_cuda_only_what_was_not_named_compiles_later(codec_id) -> None:
    # forms are counted whether they come from the compiler or from the disk: with an empty cache on disk the
    # compiler alone took minutes per codec
    found = _said(ON_CUDA, codec_id)
    assert found == ["True", "0.0", "0", "True"]


@pytest.mark.skipif(not INTERPRETED, reason="a device really compiles; see the test below")
@pytest.mark.parametrize(
    "codec_id",
    [
        "half",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("fp8", "flat", "group8", "mask4", "group2")
        ),
    ],
)
def test_a_warm_up_launches_every_form_of_kernel_that_use_does(codec_id, monkeypatch) -> None:
    pytest.importorskip("triton")
    # none of these codecs has an alphabet, and the interpreter takes minutes
    monkeypatch.setattr("tersor.warm_up._ALPHABET_BOUNDS", ())
    from tests.triton_forms import recorded_forms

    codec = codecs_named(codec_id, "cpu")[-1]
    with tersor.use_backend("gpu"):
        with recorded_forms() as warm:
            tersor.warmup([codec], [torch.float32])
        with recorded_forms() as used:
            use(codec, torch.float32, "cpu")
    assert used
    assert used <= warm


@pytest.mark.skipif(not INTERPRETED, reason="forms are recorded in the interpreter")
def test_rms_compiles_for_no_step_and_for_no_kind_of_zeros() -> None:
    """Saved activations have both, and a controller moves the step: a warm-up covers all of them."""
    pytest.importorskip("triton")
    from tests.triton_forms import recorded_forms

    found = []
    x = torch.linspace(-1, 1, 600).relu()
    for options in ({}, {"step": 0.3, "zeros": True}, {"step": 1.7, "zeros": False}):
        codec = create("rms", **options)
        with tersor.use_backend("gpu"), recorded_forms() as forms:
            (encoded,) = settled([codec.encode([x, x[:300]])])
            codec.decode(encoded, [torch.empty(600), torch.empty(300)])
        found.append(forms)
    assert len(found[0]) >= 6
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_a_codec_object_is_taken_with_its_options() -> None:
    (found,) = tersor.warmup([create("group4", seed=1)], [torch.float32])
    assert (found.codec, found.dtype, found.again_s) == ("group4", torch.float32, 0.0)


def test_progress_names_what_comes_now() -> None:
    seen = []
    tersor.warmup(
        ["raw", "half"], [torch.float32, torch.float16], progress=lambda *now: seen.append(now)
    )
    assert seen[0] == (0, 4, "raw, float32")
    assert seen[3] == (3, 4, "half, float16")


def test_defaults_are_codecs_that_are_fast_on_the_device() -> None:
    assert default_dtypes(torch.device("cpu")) == (torch.float32,)
    assert default_dtypes(torch.device("cuda")) == (torch.float32, torch.bfloat16)
    on_cpu, on_cuda = (set(default_codecs(torch.device(name))) for name in ("cpu", "cuda"))
    assert on_cpu - on_cuda == {"huffman"}
    assert on_cuda - on_cpu == {"ans"}
    assert {"auto", "flat", "rows", "group4"} <= on_cpu & on_cuda
    assert set(tersor.codec_ids()) >= on_cpu | on_cuda


def test_random_numbers_of_the_caller_stay() -> None:
    before = torch.random.get_rng_state()
    tersor.warmup(["half"])
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((["gzip"],), tersor.UnknownCodecError, "unknown codec 'gzip'"),
        (([3],), tersor.SpecError, "expected a codec"),
        (([],), tersor.SpecError, "at least one codec"),
        ((["flat"], []), tersor.SpecError, "at least one codec and one dtype"),
        ((["flat"], [torch.int32]), tersor.SpecError, "cannot encode torch.int32"),
        ((["flat"], torch.float32), tersor.SpecError, r"list of dtypes, as in \[torch.float32\]"),
        ((["flat"], ["float32"]), tersor.SpecError, "torch.float32, not 'float32'"),
        ((["raw"], None, "meta"), tersor.SpecError, "'cpu' or 'cuda', not 'meta'"),
        ((["raw"], None, "tpu"), tersor.SpecError, "'cpu' or 'cuda', not 'tpu'"),
    ],
)
def test_wrong_use_is_one_sentence_before_anything_runs(arguments, error, words) -> None:
    with pytest.raises(error, match=words):
        tersor.warmup(*arguments)


def test_one_name_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(tersor.SpecError, match=r"^give a list of codecs, as in \['raw'\]$"):
        tersor.warmup("raw")


def test_a_device_that_torch_does_not_find_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(tersor.BackendUnavailableError, match="finds no CUDA device"):
        tersor.warmup(["raw"], device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(tersor.SpecError, match="there is no cuda:7"):
        tersor.warmup(["raw"], device="cuda:7")
