"""Damaged bytes are refused before the memory of their stated size is written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_ROWS = 2**26

DECODE = """
import struct, sys, torch
from tersor import Bound, create
from tersor.errors import CorruptDataError
from tersor.kernels.payload.layout import CODED, HEADER
from tests.one_by_one import decode_one

def held():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))

def refuse(num_rows):
    # one distinct row, and a coded index of the symbols 0 and 1
    body = struct.pack("<IBBH", 1, 1, 0, 0) + struct.pack("<iHHII", 0, 2, 0, 0, 0)
    body += LENGTHS.ljust(8, b"\\0") + STREAMS * (num_rows >> 11)
    body = body[: len(body) // 8 * 8]
    payload = HEADER.pack(CODED, 0, 0.25, len(body)) + body
    payload = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    try:
        decode_one(create("rows", bound=Bound.absolute(0.5)), payload, torch.empty(num_rows, 1))
    except CorruptDataError:
        return
    raise AssertionError("not refused")

LENGTHS, STREAMS = map(bytes.fromhex, sys.argv[1:3])
# kernels are loaded, and compiled once, before anything is measured
refuse(2**16)
before = held()
refuse(int(sys.argv[3]))
print(held() - before)
"""


@pytest.mark.parametrize(
    ("lengths", "streams"),
    [("11", "ff"), ("11", "01"), ("01", "00")],
    ids=["too long", "no stream", "all rows new"],
)
def test_a_row_index_that_cannot_be_read_fills_no_memory(lengths, streams):
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is only reported by Linux")
    done = subprocess.run(
        [sys.executable, "-c", DECODE, lengths, streams, str(NUM_ROWS)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # a symbol and a mark of one byte per row; numbers of four bytes were written before
    assert int(done.stdout) < 3 * NUM_ROWS
