"""De-duplicated rows: what is stored, read back by hand, and what merging may not break."""

from __future__ import annotations

import pytest
import torch

from tersor.errors import CorruptDataError
from tersor.kernels.rows import layout
from tersor.kernels.rows.compose import decode_rows, encode_rows
from tersor.kernels.runtime.op import use_backend
from tersor.types import Bound
from tests.checks import assert_rejects, assert_within_bound


def lookups(num_rows: int, num_distinct: int, width: int, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    table = torch.randn(num_distinct, width, generator=generator)
    return table[torch.randint(0, num_distinct, (num_rows,), generator=generator)].to(dtype)


def restored(x: torch.Tensor, bound: float, coder: str) -> tuple[torch.Tensor, torch.Tensor]:
    (step, body, positions, values), _ = encode_rows(x, Bound.absolute(bound), coder)
    out = torch.full_like(x, torch.nan)
    assert decode_rows(body, step, positions, values, out, coder) == body.numel()
    return out, body


@pytest.mark.parametrize("coder", ["huffman", "ans"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_rows_come_back_within_the_bound(coder, dtype):
    for num_rows, num_distinct, width in ((1, 1, 1), (7, 7, 3), (900, 20, 8), (9000, 3000, 5)):
        x = lookups(num_rows, num_distinct, width, dtype)
        out, _ = restored(x, 0.01, coder)
        assert_within_bound(x, out, 0.01)


def test_the_largest_alphabet_of_a_coded_index_is_known_from_the_number_of_rows():
    def tried(num_rows: int, num_distinct: int) -> int:
        nbits = layout.ref_nbits(num_distinct)
        alphabet = layout.index_alphabet(num_distinct, layout.low_nbits(nbits))
        is_tried = layout.worth_coding(num_rows - num_distinct, nbits, alphabet)
        return alphabet if is_tried else 0

    for num_rows in (*range(200), 2048, 4097, 30000):
        expected = max((tried(num_rows, k) for k in range(1, num_rows + 1)), default=0)
        assert layout.most_coded_symbols(num_rows) == expected


@pytest.mark.parametrize("coder", ["huffman", "ans"])
def test_equal_rows_are_stored_once(coder):
    x = lookups(2000, 40, 16)
    _, repeated = restored(x, 0.01, coder)
    _, once = restored(x[:40], 0.01, coder)
    # 40 distinct rows need at most 6 bits per reference, and a flag of one bit per row
    assert repeated.numel() <= once.numel() + 2000 * 7 // 8 + 300


@pytest.mark.parametrize("coder", ["huffman", "ans"])
def test_rows_closer_than_the_bound_are_merged_and_hold_it(coder, generator):
    base = torch.randint(-50, 50, (1, 32), generator=generator).float()
    x = base + (torch.rand(1000, 32, generator=generator) - 0.5) * 0.02
    out, body = restored(x, 0.5, coder)
    assert_within_bound(x, out, 0.5)
    assert body.numel() < 1000


@pytest.mark.parametrize("coder", ["huffman", "ans"])
def test_outliers_stand_in_their_own_rows(coder):
    x = lookups(300, 50, 8)
    x[[3, 50, 299], [0, 7, 4]] = torch.tensor([float("nan"), float("inf"), -1e30])
    x[10] = x[50]
    out, _ = restored(x, 0.01, coder)
    assert_within_bound(x, out, 0.01)


def test_a_bound_without_a_grid_has_no_body():
    assert encode_rows(lookups(5, 3, 8), Bound.absolute(0.0))[0] is None
    assert encode_rows(torch.full((4, 8), torch.nan), Bound.relative(0.1))[0] is None


def test_a_body_of_other_rows_is_refused():
    x = lookups(500, 60, 8)
    (step, body, positions, values), _ = encode_rows(x, Bound.absolute(0.01), "huffman")
    for shape in ((400, 8), (600, 8), (500, 9)):
        out = torch.zeros(shape)
        assert_rejects(
            lambda out=out: decode_rows(body, step, positions, values, out, "huffman"),
            CorruptDataError,
        )
    # a distinct row that is announced but does not exist
    changed = body.clone()
    changed[0] += 1
    assert_rejects(
        lambda: decode_rows(changed, step, positions, values, torch.zeros(500, 8), "huffman"),
        CorruptDataError,
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("coder", ["huffman", "ans"])
def test_references_to_rows_that_do_not_exist_are_refused(coder, backend):
    """Five distinct rows take three bits per reference, which could name eight."""
    x = torch.arange(5.0).repeat(4)[:, None].expand(20, 8).contiguous()
    (step, body, positions, values), _ = encode_rows(x, Bound.absolute(0.01), coder)
    # header of 8 bytes, packed; 20 flags of one bit; 15 references of three bits
    assert body[:8].tolist() == [5, 0, 0, 0, 0, 0, 0, 0]
    assert body[8:16].tolist() == [0b11111, 0, 0, 0, 0, 0, 0, 0]
    for place in range(16, 21):
        changed = body.clone()
        changed[place] = 255
        with use_backend(backend):
            assert_rejects(
                lambda c=changed: decode_rows(c, step, positions, values, x.clone(), coder),
                CorruptDataError,
            )
