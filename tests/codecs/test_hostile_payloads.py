"""A damaged payload is decoded or refused: no crash, no hang, no large allocation, no other error.

Kernels read and write through raw pointers, so the damaged payloads are decoded in processes of
their own, against forbidden pages (``tests/codecs/hostile.py``).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tersor import Bound, Packed, TensorInfo
from tersor.errors import CorruptDataError
from tests.checks import assert_bits_equal, assert_rejects
from tests.codecs.guard_pages import GuardedMemory
from tests.codecs.lies import SHAPE, lies
from tests.codecs.variants import BOUNDED, FIXED, PAYLOADS, SCALED, build
from tests.one_by_one import decode_one

ROOT = Path(__file__).parents[2]
# the fixtures below compile every kernel and decode for all their tests
pytestmark = pytest.mark.timeout(900)
STRIDE = 5
"""Of the damaged payloads, a fifth are decoded by default, and all of them with ``-m slow``."""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=800
    )


def attacked(fixture: str, stride: int, request, tmp_path_factory) -> dict[str, list[str]]:
    """What went wrong, by variant; a process that dies is a finding and is started again."""
    log = tmp_path_factory.mktemp("hostile") / "log"
    asking = [item for item in request.session.items if fixture in item.fixturenames]
    waiting = [item.callspec.params["variant"] for item in asking]
    found: dict[str, list[str]] = {name: [] for name in waiting}
    findings = Path(f"{log}.findings")
    while waiting:
        first = waiting[0]
        done = run_python("-m", "tests.codecs.hostile", str(log), str(stride), *waiting)
        assert findings.exists(), done.stderr
        lines = findings.read_text().splitlines()
        findings.unlink()
        for line in map(json.loads, lines):
            if "done" in line:
                waiting.remove(line["variant"])
            else:
                found[line["variant"]].append(f"{line['case']}: {line['wrong']}")
        if done.returncode:
            code = done.returncode
            died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            last = log.read_text().strip() if log.exists() else "no decode"
            # with nothing left to do, it died while it ended: memory was overwritten before
            guilty = waiting.pop(0) if waiting else first
            found[guilty].append(f"{died} at {last}\n{done.stderr[-2000:]}")
    return found


@pytest.fixture(scope="module")
def findings(request, tmp_path_factory) -> dict[str, list[str]]:
    return attacked("findings", STRIDE, request, tmp_path_factory)


@pytest.fixture(scope="module")
def all_findings(request, tmp_path_factory) -> dict[str, list[str]]:
    return attacked("all_findings", 1, request, tmp_path_factory)


@pytest.mark.parametrize("variant", PAYLOADS)
def test_damaged_payloads_are_decoded_or_refused(variant, findings):
    found = findings[variant]
    assert not found, f"{len(found)} findings, the first: {found[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("variant", PAYLOADS)
def test_all_damaged_payloads_are_decoded_or_refused(variant, all_findings):
    found = all_findings[variant]
    assert not found, f"{len(found)} findings, the first: {found[0]}"


def test_a_guard_page_ends_the_process():
    script = """
import ctypes, sys, torch
from tests.codecs.guard_pages import GuardedMemory
from tests.codecs.lies import SHAPE, lies
x = GuardedMemory(100).tensor((10,), torch.float32, at_end=sys.argv[1] == "end")
x.fill_(1.0)
print("inside", flush=True)
beyond = x.data_ptr() + (40 if sys.argv[1] == "end" else -1)
ctypes.string_at(beyond, 1)
"""
    for place in ("end", "start"):
        done = run_python("-c", script, place)
        assert done.returncode == -signal.SIGSEGV, done
        assert done.stdout == "inside\n"


def test_guarded_payloads_decode_in_this_process():
    memory = GuardedMemory(1 << 16)
    x = torch.randn(50, 20)
    codec = build("flat", Bound.absolute(0.01))
    (payload,) = codec.pack(x).payloads
    out = torch.zeros(50, 20)
    decode_one(codec, memory.copy(bytes(payload.tolist()), at_end=True), out)
    assert_bits_equal(out, codec.unpack(codec.pack(x)))


@pytest.mark.parametrize("variant", PAYLOADS)
def test_every_truncation_is_refused(variant):
    """Fixed-size payloads say their size; bounded ones end in something that is missed."""
    codec = build(variant, Bound.absolute(0.01))
    x = torch.randn(12, 16, generator=torch.Generator().manual_seed(1)).cumsum(1)
    (payload,) = codec.pack(x).payloads
    out = torch.zeros_like(x)
    for size in range(payload.numel()):
        assert_rejects(
            lambda size=size: decode_one(codec, payload[:size].clone(), out), CorruptDataError
        )


@pytest.mark.parametrize("variant", BOUNDED)
def test_steps_no_writer_uses_are_refused(variant):
    """A step or constant that the dtype cannot hold, in both modes that have one."""
    codec = build(variant, Bound.absolute(0.01))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for x in (torch.ones(100, dtype=dtype), torch.linspace(0, 1, 4000).to(dtype)):
            (payload,) = codec.pack(x).payloads
            if payload[0] == 0:
                continue  # stored exactly, without a step
            for step in (1e300, float("inf"), float("nan"), -1e300):
                changed = payload.clone()
                changed[8:16] = torch.tensor([step], dtype=torch.float64).view(torch.uint8)
                out = torch.zeros_like(x)
                assert_rejects(
                    lambda changed=changed, out=out: decode_one(codec, changed, out),
                    CorruptDataError,
                )


@pytest.mark.parametrize("variant", PAYLOADS)
def test_absurd_shapes_are_refused_before_anything_is_allocated(variant):
    codec = build(variant, Bound.absolute(0.01))
    (payload,) = codec.pack(torch.randn(30)).payloads
    for shape in ((2**40,), (2**31, 2**31), (2**30,)):
        info = TensorInfo(shape, torch.float32)
        wrong = Packed(info, codec, (payload,), 2**62)
        assert_rejects(lambda wrong=wrong: codec.unpack(wrong), CorruptDataError)


@pytest.mark.parametrize("variant", PAYLOADS)
def test_payloads_at_any_address_decode(variant):
    """A payload cut out of a larger buffer begins where it begins."""
    codec = build(variant, Bound.absolute(0.01))
    x = torch.randn(12, 16)
    (payload,) = codec.pack(x).payloads
    expected = codec.unpack(codec.pack(x))
    for offset in range(1, 8):
        buffer = torch.zeros(payload.numel() + 16, dtype=torch.uint8)
        moved = buffer[offset : offset + payload.numel()]
        moved.copy_(payload)
        out = torch.zeros_like(x)
        decode_one(codec, moved, out)
        assert_bits_equal(out, expected)


@pytest.mark.parametrize("variant", PAYLOADS)
def test_payloads_in_steps_decode(variant):
    codec = build(variant, Bound.absolute(0.01))
    x = torch.randn(12, 16)
    (payload,) = codec.pack(x).payloads
    spread = torch.zeros(2 * payload.numel(), dtype=torch.uint8)[::2]
    spread.copy_(payload)
    out = torch.zeros_like(x)
    decode_one(codec, spread, out)
    assert_bits_equal(out, codec.unpack(codec.pack(x)))


@pytest.mark.parametrize("variant", PAYLOADS)
def test_payloads_that_are_no_bytes_are_refused(variant):
    codec = build(variant, Bound.absolute(0.01))
    packed = codec.pack(torch.randn(12, 16))
    (payload,) = packed.payloads
    for wrong in (payload.float(), payload.view(-1, 1), payload.view(torch.int8)):
        bad = Packed(packed.info, codec, (wrong,), packed.chunk_values)
        assert_rejects(lambda bad=bad: codec.unpack(bad), CorruptDataError)


@pytest.mark.parametrize("variant", ["flat", "flat-64-base-lorenzo2", "huffman", "ans", "rows"])
def test_lies_differ_from_the_truth_only_in_what_is_missing(variant):
    """Some are complete and decode, so the others are not refused for their form."""
    codec = build(variant, Bound.absolute(0.01))
    decoded = 0
    for _, data in lies(*PAYLOADS[variant]):
        try:
            decode_one(
                codec, torch.frombuffer(bytearray(data), dtype=torch.uint8), torch.zeros(SHAPE)
            )
        except CorruptDataError:
            continue
        decoded += 1
    assert decoded > 0


def test_every_variant_is_attacked():
    assert set(PAYLOADS) == set(BOUNDED) | set(FIXED) | set(SCALED)
