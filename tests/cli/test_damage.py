"""Damaged files of every format, compressed or decoded: a sentence, or an array, never a traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

SMALL = np.linspace(0, 1, 60, dtype=np.float32).reshape(10, 6)


@pytest.fixture
def files(tersor) -> dict[str, bytes]:
    np.save("c.npy", SMALL)
    np.save("f.npy", np.asfortranarray(SMALL))
    np.savez("s.npz", x=SMALL, i=np.arange(4))
    np.savez_compressed("z.npz", x=SMALL, f=np.asfortranarray(SMALL))
    torch.save({"m": {"w": torch.from_numpy(SMALL)}, "e": 1}, "p.pt")
    tersor.ok("compress", "s.npz", "--rel", "0.01", "-o", "t.tsr")
    names = ("c.npy", "f.npy", "s.npz", "z.npz", "p.pt", "t.tsr")
    return {name: Path(name).read_bytes() for name in names}


def _damaged(data: bytes) -> list[bytes]:
    steps = range(0, len(data), max(1, len(data) // 12))
    flipped = [data[:i] + bytes([data[i] ^ 0x55]) + data[i + 1 :] for i in steps]
    return flipped + [data[:i] for i in steps] + [data[:i] + b"((9" + data[i:] for i in steps]


def test_damage_is_reported_in_one_line(tersor, files) -> None:
    codes = set()
    for name, data in files.items():
        verb = ("decompress",) if name.endswith(".tsr") else ("compress", "--rel", "0.01")
        for damaged in _damaged(data):
            Path(name).write_bytes(damaged)
            done = tersor(*verb, name, "-o", "out.npz", "--force")
            codes.add(done.code)
            assert done.code in (0, 1, 2)
            if done.code:
                assert done.words.startswith("tersor: ")
                assert done.words.count("\n") == 1
    assert 1 in codes
