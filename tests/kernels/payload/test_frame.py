from __future__ import annotations

import pytest
import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.payload.frame import frame_offsets, pack_frame, split_frame


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1], [8], [7, 0, 9, 16, 1], [100] * 50])
def test_payloads_come_back_aligned_and_without_a_copy(sizes):
    payloads = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    frame = pack_frame(payloads)
    assert frame.numel() == frame_offsets(sizes)[-1]
    parts = split_frame(frame, sizes)
    assert len(parts) == len(payloads)
    assert all(map(torch.equal, parts, payloads))
    assert all(part.storage_offset() % 8 == 0 for part in parts)
    storage = frame.untyped_storage().data_ptr()
    assert all(part.untyped_storage().data_ptr() == storage for part in parts)


def test_frames_have_no_byte_of_fresh_memory():
    frame = pack_frame([torch.full((3,), 255, dtype=torch.uint8)] * 2)
    assert frame.tolist() == ([255] * 3 + [0] * 5) * 2


@pytest.mark.parametrize(
    "sizes", [[-1], [-8, 24], [17], [8], [8, 9], [16, 1], [2**63, 0], [2**62] * 4, []]
)
def test_sizes_that_do_not_add_up_are_refused(sizes):
    with pytest.raises(CorruptDataError):
        split_frame(torch.zeros(16, dtype=torch.uint8), sizes)


def test_only_bytes_make_a_frame():
    with pytest.raises(SpecError):
        pack_frame([torch.zeros(3)])
    with pytest.raises(CorruptDataError):
        split_frame(torch.zeros(8), [8])
