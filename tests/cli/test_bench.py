from __future__ import annotations

import json
from pathlib import Path

import pytest

from tersor.bench.core.outcome import SuiteOutcome
from tersor.bench.kernels.operations.plan import OPERATIONS
from tersor.bench.peers import PEERS, load_peer
from tersor.cli.bench import show_rows
from tersor.cli.screen import Screen
from tersor.codecs import registry
from tersor.errors import BackendUnavailableError
from tersor.kernels.group import group_dequantize
from tests.bench.core.test_rows import make_row
from tests.bench.planted import JustOver

SMALL = ("bench", "kernels", "--smoke", "--inputs", "gradients", "--bounds", "0.01")

# blosc2 sets an environment variable when it is imported; here it is no test's leak
for name in PEERS:
    try:
        load_peer(name)
    except BackendUnavailableError:
        continue


def test_rows_are_shown_written_and_resumed(tersor) -> None:
    command = (*SMALL, "--codecs", "flat", "--peers", "memcpy", "--threads", "1")
    done = tersor.ok(*command, "--output", "rows.jsonl", "--json").json
    written = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert written == done["rows"]
    assert {row["codec"] for row in written} == {"flat", "memcpy"}
    assert done["goals"] == []
    assert "resume" in tersor.refused(*command, "--output", "rows.jsonl")
    again = tersor.ok(*command, "--output", "rows.jsonl", "--resume", "--json").json
    assert again["rows"] == written


def test_people_see_the_rows_and_the_goals(capsys) -> None:
    show_rows(Screen(), [make_row()], SuiteOutcome(), judges=True)
    shown = capsys.readouterr().out
    for words in ("gradients", "flat", "Goals", "flat encodes at 0.40 of memcpy speed"):
        assert words in shown


@pytest.mark.parametrize(
    "command",
    [
        (*SMALL, "--codecs", "flat", "--peers", "none", "--threads", "1"),
        ("bench", "memory", "--folder", ".", "--smoke"),
    ],
)
def test_a_smoke_run_judges_no_goal(tersor, command) -> None:
    if "memory" in command and not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is only reported by Linux")
    done = tersor.ok(*command)
    assert "flat" in done.out
    assert "Goals" not in done.out
    assert "missed" not in done.out
    assert done.words == "--smoke measures too little to judge the goals\n"


def test_a_codec_that_breaks_its_bound_is_refused(tersor, monkeypatch) -> None:
    monkeypatch.setitem(registry._codecs, JustOver.codec_id, JustOver)
    done = tersor(*SMALL, "--codecs", JustOver.codec_id, "--peers", "none", "--json")
    assert done.code == 1
    assert done.json["rows"] == []
    assert len(done.json["refusals"]) == 2
    assert "refused" in done.err


def test_fused_operations_can_be_asked_for_alone(tersor) -> None:
    command = ("bench", "kernels", "--smoke", "--peers", "none", "--threads", "1")
    found = tersor.ok(*command, "--codecs", "groups", "--json").json
    assert [row["codec"] for row in found["rows"]] == list(OPERATIONS)
    assert {row["kind"] for row in found["rows"]} == {"operation"}
    done = tersor.ok(*command, "--codecs", "add4,difference4-stochastic", "--output", "rows.jsonl")
    assert "Fused operations on groups" in done.out
    assert "difference4-stochastic" in done.out
    assert "add4-bf16" not in done.out
    asked = ("--codecs", "add4", "--inputs", "field")
    assert "add gradients to the inputs" in tersor.refused(*command, *asked)


def test_an_operation_with_other_bytes_than_the_reference_fails_the_command(
    tersor, monkeypatch
) -> None:
    monkeypatch.setitem(group_dequantize._loaded, "cpu", lambda *_: None)
    command = ("bench", "kernels", "--smoke", "--peers", "none", "--threads", "1", "--json")
    done = tersor(*command, "--codecs", "add4,quantize4")
    assert done.code == 1
    assert [row["codec"] for row in done.json["rows"]] == ["quantize4"]
    assert done.json["refusals"] == [
        "add4 on 1 MiB is refused: its bytes are not those of the reference"
    ]


def test_memory_is_measured(tersor) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is only reported by Linux")
    done = tersor.ok("bench", "memory", "--smoke", "--json", "--folder", ".").json
    assert done["rows"][0]["suite"] == "memory"
    assert done["rows"][0]["peak_extra_nbytes"] > 0
    assert list(tersor.folder.iterdir()) == []
