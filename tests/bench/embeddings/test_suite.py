"""Ranks on a network of their own: planned, throttled, measured, and gone afterwards."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import NoReturn

import pytest
import torch

from tersor.bench.core.outcome import SuiteOutcome
from tersor.bench.embeddings import suite as embeddings
from tersor.bench.embeddings.suite import EmbeddingsConfig, _Suite, run_embeddings
from tersor.errors import BackendUnavailableError, ExchangeError, SpecError
from tersor.sites.embeddings import AdaptiveBounds, ClassBounds, Decay
from tersor.workloads.network import Bandwidth, Loopback, RankProcesses, opening
from tersor.workloads.network.exchange_case import Bench
from tersor.workloads.network.namespaces import (
    Namespaces,
    remove_leftovers,
    run_command,
)
from tests.processes import assert_ended, children_of

PLAN = Namespaces(3, pid=7)


def _allowed() -> bool:
    """Say whether this machine lets us make namespaces and throttle links."""
    try:
        opening.check_available()
        with opening.open_network(1):
            return True
    except BackendUnavailableError:
        return False


class Recorder:
    """Takes commands in the place of ``ip`` and ``tc``."""

    def __init__(self, namespaces=(), failing=None):
        self.commands = []
        self._namespaces, self._failing = namespaces, failing

    def __call__(self, command):
        self.commands.append(" ".join(command))
        if self._failing is not None and self._failing in command:
            raise BackendUnavailableError(f"no {self._failing}")
        return "\n".join(f"{name} (id: 3)" for name in self._namespaces)


@pytest.mark.parametrize(
    ("text", "bits", "shown"),
    [
        ("100mbit", 10**8, "100mbit"),
        ("1GBIT", 10**9, "1gbit"),
        (" 2.5 gbit/s ", 25 * 10**8, "2.5gbit"),
        ("1500kbit", 15 * 10**5, "1.5mbit"),
    ],
)
def test_a_bandwidth_is_read_and_shown_as_tc_writes_it(text, bits, shown):
    found = Bandwidth.parse(text)
    assert (found.bits_per_s, str(found)) == (bits, shown)


@pytest.mark.parametrize(
    "text", ["", "fast", "1", "-1gbit", "1gb", "1 kbit", "1000gbit", "nangbit"]
)
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(SpecError):
        Bandwidth.parse(text)


def test_every_rank_has_an_address_and_no_link_is_made_outside_the_namespaces():
    commands = [" ".join(command) for command in PLAN.build()]
    for rank in range(3):
        assert f"ip -n tersor-7-{rank} address add 10.77.0.{rank + 1}/24 dev link0" in commands
    made = {command.split()[3] for command in commands if command.startswith("ip netns add")}
    assert made == set(PLAN.names)
    others = [command for command in commands if not command.startswith("ip netns add")]
    assert all(command.split()[:2] == ["ip", "-n"] for command in others)
    assert {command.split()[2] for command in others} == set(PLAN.names)


def test_both_ends_of_every_link_are_throttled_with_a_burst_that_is_short():
    shaped = [c for c in PLAN.shaping(Bandwidth(10**9)) if c[0] == "tc"]
    ends = {(c[2], c[6]) for c in shaped}
    ranks = range(3)
    assert ends == {(f"tersor-7-{r}", "link0") for r in ranks} | {
        ("tersor-7-hub", f"port{r}") for r in ranks
    }
    for command in shaped:
        rate, burst = command[command.index("rate") + 1], command[command.index("burst") + 1]
        assert rate == "1000000000bit"
        assert int(burst) * 8 / 10**9 < 1e-3


def test_only_namespaces_of_dead_processes_are_removed():
    run = Recorder(["tersor-7-hub", "tersor-7-0", "tersor-8-0", "tersor-x-0", "mine-7-0"])
    remove_leftovers(run, is_alive=lambda pid: pid == 8)
    assert run.commands[1:] == [
        "ip netns delete tersor-7-hub",
        "ip netns delete tersor-7-0",
    ]


def test_a_kernel_that_cannot_throttle_leaves_nothing():
    run = Recorder(failing="tbf")
    namespaces = Namespaces(2, run)
    with pytest.raises(BackendUnavailableError, match="no tbf"):
        namespaces.open()
    names = namespaces.names
    assert run.commands[-3:] == [f"ip netns delete {name}" for name in names]


def test_without_root_or_tools_the_reason_is_one_sentence(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(BackendUnavailableError, match="command ip"):
        opening.check_available()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BackendUnavailableError, match="need root"):
        opening.check_available()


@pytest.mark.parametrize(
    "change",
    [{"num_ranks": 1}, {"num_ranks": 27}, {"batches": (63,)}, {"batches": ()}, {"preset": "huge"},
     {"contenders": ("zip",)}, {"rounds": 0}, {"ranks_per_node": 0}, {"ranks_per_node": 4}],
)  # fmt: skip
def test_an_impossible_plan_is_refused(change):
    with pytest.raises(SpecError):
        EmbeddingsConfig(**change)


def test_loopback_is_measured_once_and_every_row_says_so(monkeypatch):
    def refuse():
        raise BackendUnavailableError("network namespaces need root")

    monkeypatch.setattr(opening, "check_available", refuse)
    config = EmbeddingsConfig(
        bandwidths=(Bandwidth(10**8), Bandwidth(10**9)), contenders=("int8", "rows")
    )
    outcome = run_embeddings(config.smoke())
    assert outcome.notes == [
        "ranks use loopback, which is not throttled: network namespaces need root"
    ]
    names = ("float32", "int8", "rows")
    found = [(row.codec, row.exchange.direction) for row in outcome.rows]
    assert found == [(name, direction) for name in names for direction in ("forward", "backward")]
    for row in outcome.rows:
        assert (row.exchange.network, row.exchange.link) == ("loopback", None)
        assert "loopback" in row.note
        assert row.exchange.step_s.p50 > 0
        phases = (row.encode_s, row.exchange.sizes_s, row.exchange.payload_s, row.decode_s)
        assert 0 < sum(phase.p50 for phase in phases) <= row.exchange.exchange_s.p50
    ratios = {row.codec: row.ratio for row in outcome.rows if row.exchange.direction == "forward"}
    assert ratios["float32"] == 1.0
    assert ratios["int8"] == pytest.approx(64 / 20)
    assert ratios["rows"] > ratios["int8"]
    (rows,) = (row for row in outcome.rows if row.codec == "rows" and row.worst_error is not None)
    assert rows.bound_held
    assert run_embeddings(config.smoke(), done=frozenset(r.key for r in outcome.rows)).rows == []


def test_rows_of_nodes_with_several_ranks_say_so_and_are_read_again():
    if not _allowed():
        pytest.skip("needs root, and a kernel with namespaces and tbf")
    config = EmbeddingsConfig(ranks_per_node=3, contenders=("int8",)).smoke()
    assert (config.num_ranks, config.ranks_per_node) == (4, 2)
    outcome = run_embeddings(config)
    assert len(outcome.rows) == 4
    for row in outcome.rows:
        assert (row.exchange.num_ranks, row.exchange.ranks_per_node) == (4, 2)
        assert row.group == f"{row.exchange.direction}, 4 ranks, 2 per node, 1gbit"
        assert row.exchange.place == "4 ranks, 2 per node, 1gbit"
        assert type(row).from_config(row.to_config()) == row
    assert run_embeddings(config, done=frozenset(row.key for row in outcome.rows)).rows == []
    alone = embeddings._Suite(replace(config, ranks_per_node=1), "namespaces")
    there = embeddings._Suite(config, "namespaces")
    assert not alone.keys(Bandwidth(10**9), 64) & there.keys(Bandwidth(10**9), 64)
    # loopback has no nodes
    assert embeddings._Suite(config, Loopback.kind).ranks_per_node == 1


def test_rows_beyond_their_bound_get_no_time():
    suite = embeddings._Suite(EmbeddingsConfig(contenders=("rows",)), Loopback.kind)
    times = {
        "seconds": [1.0],
        "phases": [dict.fromkeys(("encode", "sizes", "payload", "decode"), 0.1)],
    }
    one = {
        "worst": (0.51, 0.5), "choices": {}, "forward": times, "backward": times, "step": [1.0],
        "nbytes": {"forward": (8, 4), "backward": (8, 4)},
    }  # fmt: skip
    outcome = SuiteOutcome()
    answers = [{"float32": one, "rows": one}] * 2
    assert [row.codec for row in suite.rows(None, 64, answers, outcome)] == ["float32"] * 2
    assert len(outcome.refusals) == 1
    assert "rows is refused" in outcome.refusals[0]


def test_an_error_where_none_was_allowed_is_the_worst():
    suite = embeddings._Suite(EmbeddingsConfig(contenders=("rows",)), Loopback.kind)
    good, bad = {"worst": (0.9, 1.0)}, {"worst": (0.5, 0.0)}
    outcome = SuiteOutcome()
    answers = [{"float32": one, "rows": one} for one in (good, bad)]
    suite.contenders = suite.contenders[1:]
    assert list(suite.rows(None, 64, answers, outcome)) == []
    assert "error 0.5 where 0 was promised" in outcome.refusals[0]
    exact, decoded = (
        [torch.tensor([0.0, 2.0]), torch.ones(2)],
        [torch.tensor([0.0, 1.1]), torch.ones(2) / 2],
    )
    bounds = AdaptiveBounds(bounds=ClassBounds(0.5, 0.5, 0.5), decay=Decay.off())
    assert Bench._worst(decoded, exact, bounds) == (0.5, 0.0)


def _die() -> NoReturn:
    raise RuntimeError("these are my last words")


def test_a_rank_that_dies_ends_the_run_with_its_last_words():
    processes = RankProcesses(_die, Loopback(), 2)
    with pytest.raises(ExchangeError, match="my last words"), processes as ranks:
        ranks.set_up({}, timeout_s=60)


SCRIPT = """
import time
from tersor.workloads.network import RankProcesses, open_network
with open_network(2) as network, RankProcesses(print, network, 2):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_process_and_its_namespaces_go(number):
    if not _allowed():
        pytest.skip("needs root, and a kernel with namespaces and tbf")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "ready\n"
        ranks = children_of(process.pid)
        assert len(ranks) == 2
        process.send_signal(number)
        process.wait(30)
    if number == signal.SIGKILL:
        remove_leftovers(run_command)
    assert f"tersor-{process.pid}-" not in run_command(("ip", "netns", "list"))
    assert_ended(ranks)


def test_a_contender_that_loses_values_is_left_out_and_the_user_hears_of_it():
    seen: list[str] = []
    suite = _Suite(EmbeddingsConfig(contenders=("int8",)).smoke(), "loopback")
    answers = [{one.name: {"worst": (math.inf, 0.1)} for one in suite.contenders}]
    outcome = SuiteOutcome(on_note=seen.append)
    assert not list(suite.rows(None, 64, answers, outcome))
    names = [one.name for one in suite.contenders]
    assert seen == [f"left out: {name}: it lost values of the look-ups" for name in names]
