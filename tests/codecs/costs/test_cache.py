"""Costs come back from disk as they were measured, and nothing on a disk is an error."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tersor.codecs.costs import CodecCost, CostCache, cache
from tests.codecs.costs.planted import COSTS, GPU


@pytest.fixture
def found(tmp_path) -> CostCache:
    return CostCache(tmp_path / "new" / "folder")


def test_costs_come_back_as_they_were(found):
    assert found.load(GPU) is None
    assert found.store(COSTS)
    assert found.load(GPU) == COSTS


def test_the_file_can_be_read_by_a_person(found):
    found.store(COSTS)
    values = json.loads(found.path(GPU).read_text())
    assert values["device"] == GPU
    assert values["codecs"]["flat"]["encode_gb_s"] == COSTS.codecs["flat"].encode_gb_s
    assert found.path(GPU).read_text().count("\n") > 10


def test_every_gpu_and_version_has_its_own_file(found, monkeypatch):
    found.store(COSTS)
    assert found.load("Another GPU") is None
    monkeypatch.setattr(cache, "__version__", "99.0")
    assert found.load(GPU) is None
    found.store(COSTS)
    assert found.load(GPU) == COSTS
    assert len(list(found.folder.iterdir())) == 2


def test_a_name_from_a_driver_stays_in_the_folder(found):
    assert found.path("../../A/B\0 C\n").parent == found.folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:50],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace("flat", "flatter"),
        lambda text: text.replace('"encode_gb_s"', '"encode_mb_s"'),
        lambda text: text.replace('"encode_gb_s": 1480', '"encode_gb_s": 0'),
        lambda text: text.replace('"encode_gb_s": 1480', '"encode_gb_s": NaN'),
        lambda text: text.replace('"encode_gb_s": 1480', '"encode_gb_s": "fast"'),
        lambda text: text.replace('"encode_fixed_us": 183', '"encode_fixed_us": -1'),
        lambda text: text.replace(GPU, "Another GPU"),
        lambda text: "\xff\xfe",
        lambda text: 200_000 * "[",
        lambda text: text.replace('"encode_fixed_us": 183', '"encode_fixed_us": 1' + 400 * "0"),
    ],
)
def test_a_damaged_file_is_as_none_with_one_line_in_the_log(found, damage, caplog):
    found.store(COSTS)
    path, text = found.path(GPU), found.path(GPU).read_text()
    assert damage(text) != text
    path.write_bytes(damage(text).encode("latin-1"))
    assert found.load(GPU) is None
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    # and is replaced by the next
    assert found.store(COSTS)
    assert found.load(GPU) == COSTS


def test_a_folder_that_cannot_be_written_is_one_line_in_the_log(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    blocked = CostCache(tmp_path / "file" / "tersor")
    assert blocked.load(GPU) is None
    assert not caplog.records
    assert not blocked.store(COSTS)
    (record,) = caplog.records
    assert GPU in record.getMessage()


def test_many_writers_and_readers_see_whole_files_alone(found, caplog):
    speeds = [float(k) for k in range(1, 5)]
    flat = COSTS.codecs["flat"]
    each = [
        replace(COSTS, codecs={name: replace(flat, encode_gb_s=speed) for name in COSTS.codecs})
        for speed in speeds
    ]
    found.store(each[0])
    seen = []

    def write(costs) -> None:
        for _ in range(20):
            assert found.store(costs)
            seen.append(found.load(GPU))

    threads = [threading.Thread(target=write, args=(costs,)) for costs in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 80
    assert all(costs in each for costs in seen)
    assert not caplog.records
    assert list(found.folder.iterdir()) == [found.path(GPU)]


def test_the_folder_is_that_of_the_xdg_specification(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert CostCache.of_user().folder == tmp_path / "caches" / "tersor"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert CostCache.of_user().folder == tmp_path / ".cache" / "tersor"


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def refuse() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    assert CostCache.of_user().load(GPU) is None
    assert not CostCache.of_user().store(COSTS)


def test_a_cost_is_a_line_and_its_fixed_part_is_shared():
    cost = CodecCost.of((100, 2), (50, 4))
    assert cost.encoding_s(10**9) == pytest.approx(0.5 + 100e-6)
    assert cost.decoding_s(0, num_sharing=5) == pytest.approx(10e-6)
    assert cost.coding_s(10**9) == pytest.approx(0.75 + 150e-6)
