from __future__ import annotations

import torch

from tersor import Bound, codec_ids, create
from tersor.codecs import get
from tersor.codecs.costs import CostCache
from tersor.codecs.costs.shipped import CPU
from tersor.testing.conformance import CHECKS
from tests.codecs.costs.planted import COSTS, GPU, plant


def test_every_codec_is_listed_with_what_it_takes(tersor) -> None:
    listed = tersor.ok("codecs", "--json").json["codecs"]
    assert [codec["id"] for codec in listed] == codec_ids()
    for codec in listed:
        spec = dict(codec["options"])
        if codec["takes_bound"]:
            spec["bound"] = Bound.relative(0.1)
        # the defaults that are shown are the defaults
        assert create(codec["id"], **spec) == create(
            codec["id"], **({"bound": spec["bound"]} if codec["takes_bound"] else {})
        )
        assert codec["guarantee"] == get(codec["id"]).guarantee


def test_backends_say_what_they_need(tersor) -> None:
    backends = {b["name"]: b for b in tersor.ok("codecs", "--json").json["backends"]}
    assert list(backends) == ["reference", "cpu", "gpu"]
    assert backends["reference"]["available"]
    assert len(backends["reference"]["operations"]) == backends["reference"]["num_operations"] > 10
    for backend in backends.values():
        assert backend["available"] == (not backend["why_not"])


def test_people_see_a_table(tersor) -> None:
    shown = tersor.ok("codecs").out
    for codec_id in codec_ids():
        assert codec_id in shown
    assert "numba" in shown


def test_a_codec_is_checked_by_name(tersor) -> None:
    shown = tersor.ok("codecs", "--check", "half").out
    for name in (*CHECKS, "config goes through JSON"):
        # half promises no bound, so there is none that could hold
        assert (name in shown) == ("bound" not in name)
    assert "no" not in shown.split()
    found = tersor.ok("codecs", "--check", "half", "--json").json
    assert found["passed"]
    assert all(check["passed"] for check in found["checks"])


def test_only_what_exists_is_checked(tersor) -> None:
    assert "unknown codec 'gzip'" in tersor.refused("codecs", "--check", "gzip")


def test_costs_of_a_cpu_are_those_that_ship(tersor) -> None:
    found = tersor.ok("codecs", "--costs", "--device", "cpu", "--json").json
    assert found == {
        "device": CPU.device,
        "source": "shipped",
        "file": None,
        "codecs": CPU.to_config(),
    }
    shown = tersor.ok("codecs", "--costs", "--device", "cpu").out
    assert "huffman" in shown
    assert CPU.origin in shown


def test_costs_of_a_gpu_are_shown_and_renewed(tersor, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gpu = plant(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for options, num_measured in (((), 1), ((), 1), (("--renew",), 2)):
        found = tersor.ok("codecs", "--costs", *options, "--json").json
        assert (found["device"], found["source"]) == (GPU, "measured")
        assert found["codecs"] == COSTS.to_config()
        assert found["file"] == str(CostCache.of_user().path(GPU))
        assert gpu.num_measured == num_measured


def test_costs_that_cannot_be_are_refused(tersor) -> None:
    assert "only costs of a GPU" in tersor.refused(
        "codecs", "--costs", "--device", "cpu", "--renew"
    )
    assert "give it too" in tersor.refused("codecs", "--renew")
    assert "not both" in tersor.refused("codecs", "--costs", "--check", "half")
    assert "must be 'cpu' or 'cuda'" in tersor.refused("codecs", "--costs", "--device", "tpu")
