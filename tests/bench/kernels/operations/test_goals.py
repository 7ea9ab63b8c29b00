from __future__ import annotations

import pytest

from tersor.bench.core.operation_cost import OperationCost
from tersor.bench.core.row_file import RowFile
from tersor.bench.core.rows import COPY_NBYTES, OperationRow, ResultRow
from tersor.bench.kernels.operations.plan import OPERATIONS
from tersor.bench.page import filled
from tersor.bench.report import build_report, read_runs
from tersor.bench.sites import report_sections, site_tables
from tests.bench.kernels.test_cpu_goals import goal, rendered
from tests.bench.report.runs import ORIGIN, kernel_row, seconds

MIB = 2**20
MEMCPY_S = 1e-3


def operation_row(name, call_s, *, graph_s=None, mib=64, moved_mib=64, device="cpu", **changes):
    """An operation; a copy moves 1 MiB per us, and memcpy takes 1 ms for the float32 values."""
    nbytes = mib * MIB
    on_cuda = device == "cuda"
    values = {
        "suite": "groups",
        "codec": name,
        "version": "1",
        "spec": OPERATIONS[name].to_config(),
        "input": "gradients",
        "device": device,
        "num_values": nbytes // 4,
        "original_nbytes": nbytes,
        "encoded_nbytes": nbytes // 8,
        "worst_error": None,
        "error_bound": None,
        "encode_s": seconds(call_s),
        "decode_s": seconds(call_s),
        "memcpy_s": seconds(MEMCPY_S),
        "copy_s": seconds(2 * COPY_NBYTES / MIB * 1e-6) if on_cuda else None,
        "num_launches": {"call": 1} if on_cuda else None,
        "operation": OperationCost(
            moved_nbytes=moved_mib * MIB,
            num_calls=128 if on_cuda else 1,
            graph_s=None if graph_s is None else seconds(graph_s),
        ),
        **ORIGIN,
    }
    return OperationRow(**{**values, **changes})


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("difference4-stochastic", "differences"),
        ("add4-bf16", "additions"),
        ("hadamard8", "quantizing with Hadamard"),
        ("sum8x4-hadamard", "sums"),
        ("sum8x8to4", "requantized sums"),
    ],
)
def test_every_fused_form_is_judged_against_memcpy_on_the_cpu(name, family):
    words = f"{family} at 0.30 of memcpy"
    assert goal([operation_row(name, MEMCPY_S / 0.301)], words).met is True
    assert goal([operation_row(name, MEMCPY_S / 0.299)], words).met is False
    with_two = operation_row(name, MEMCPY_S / 0.301, threads=2)
    assert goal([with_two], words).met is None, "one thread is judged"


def test_the_slowest_operation_decides_and_is_named():
    rows = [operation_row("difference4", 1e-3), operation_row("difference4-stochastic", 4e-3)]
    found = goal(rows, "differences at")
    assert found.measured == pytest.approx(0.25)
    assert found.detail == "worst of 2: difference4-stochastic, 64 MiB; median 0.625"


@pytest.mark.parametrize(
    ("name", "words", "share"),
    [
        ("difference4-bf16-stochastic", "stochastic differences at 0.90 of the copy", 0.90),
        ("hadamard4-stochastic", "stochastic quantizing with Hadamard at 0.90", 0.90),
        ("add4", "additions at 0.85 of the copy", 0.85),
        ("sum8x8to4-stochastic", "requantized sums at 0.85 of the copy", 0.85),
    ],
)
def test_on_cuda_the_loop_is_judged_by_bytes_moved_and_the_graph_is_not(name, words, share):
    enough, short = (64e-6 / (share * factor) for factor in (1.001, 0.999))
    fast, slow = 1e-6, 1.0
    assert goal([operation_row(name, enough, graph_s=slow, device="cuda")], words).met is True
    assert goal([operation_row(name, short, graph_s=fast, device="cuda")], words).met is False
    small = operation_row(name, enough, graph_s=slow, device="cuda", mib=32)
    assert goal([small], words).met is None, "64 MiB and more are judged"


def test_hadamard_is_judged_by_the_same_rounding_and_size_without():
    words = "quantizing with Hadamard at 0.97 of its speed"
    plain = operation_row("quantize4-stochastic", 97.1e-6, device="cuda")
    with_it = operation_row("hadamard4-stochastic", 100e-6, device="cuda")
    assert goal([plain, with_it], words).met is True
    slower = operation_row("hadamard4-stochastic", 100.2e-6, device="cuda")
    assert goal([plain, slower], words).met is False
    other = operation_row("quantize4", 97.1e-6, device="cuda")
    assert goal([other, with_it], words).met is None


def test_a_table_shows_the_loop_first_and_the_graph_after_it():
    row = operation_row("add4", 80e-6, graph_s=65e-6, device="cuda")
    (table,) = site_tables([row])
    shown = rendered(table)
    cells = ["cuda", "64", "add4", "1", "80.0", "838.9", "12.50", "0.800", "65.0", "0.985", "1"]
    line = next(line for line in shown.splitlines() if "add4" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == cells


def test_pages_and_reports_show_operations_apart_from_codecs(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path) as file:
        file.append(kernel_row("flat"))
        file.append(operation_row("add4", 2e-3))
    page = filled(
        "<!-- operations: rows.jsonl codec=add4 -->\n<!-- end -->\n"
        "<!-- rows: rows.jsonl -->\n<!-- end -->\n",
        tmp_path,
    )
    operations, rows = page.split("<!-- rows")
    assert "| cpu | 64 | add4 | 1 | 2000 |" in operations
    assert "flat" in rows
    assert "add4" not in rows
    report = build_report(read_runs([str(path)]), report_sections(), title="t").render()
    assert "1 row of fused operations on groups" in report
    assert "Fused operations: 64 MiB on cpu" in report


def test_a_row_says_its_shares_and_is_read_again():
    row = operation_row("add4", 80e-6, graph_s=65e-6, device="cuda")
    config = row.to_config()
    assert config["kind"] == "operation"
    assert config["ceiling_share"] == pytest.approx(0.8)
    assert config["graph_ceiling_share"] == pytest.approx(64 / 65)
    assert ResultRow.from_config(config) == row
    assert row.times() == {"call": seconds(80e-6), "graph": seconds(65e-6)}
