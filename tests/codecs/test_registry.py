"""Codecs by name: built in, brought by other packages, unknown, and newer than we are."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from tersor import Bound, codec_ids, compress, create, decompress
from tersor.codecs import Codec, from_config, get, register, registry
from tersor.codecs.raw import Raw
from tersor.codecs.stream import Flat
from tersor.errors import SpecError, UnknownCodecError, UnsupportedVersionError
from tests.checks import assert_rejects
from tests.distributions import NEGATE, install

BUILT_IN = [
    "ans",
    "auto",
    "bf16",
    "delta",
    "flat",
    "fp8",
    "group2",
    "group4",
    "group8",
    "half",
    "huffman",
    "lossless",
    "lz4",
    "mask2",
    "mask4",
    "raw",
    "rms",
    "rows",
    "sz3",
    "zfp",
    "zstd",
]


@pytest.fixture(autouse=True)
def _same_registry_afterwards(monkeypatch):
    monkeypatch.setattr(registry, "_codecs", dict(registry._codecs))
    registry._warn_of_taken_ids.cache_clear()
    registry._warn.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution that offers the codec ``negate``, once under another name."""
    offers = {"negate": "Negate", "other-name": "Negate"}
    install(tmp_path, "thirdparty-codec", offers, NEGATE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("thirdparty_codec", None)


def test_built_in_codecs_are_there():
    assert codec_ids() == BUILT_IN
    assert get("flat") is Flat


def test_unknown_ids_are_refused_with_those_known():
    error = assert_rejects(lambda: create("gzip"), UnknownCodecError)
    assert "'gzip'" in str(error)
    assert "huffman" in str(error)
    assert_rejects(lambda: from_config({"id": "gzip", "version": 1}), UnknownCodecError)
    assert_rejects(lambda: compress(torch.zeros(3), codec="gzip"), UnknownCodecError)


def test_a_codec_of_another_package_is_found_and_used(installed):
    assert "negate" in codec_ids()
    x = torch.randn(5)
    packed = compress(x, codec="negate", strength=3)
    assert packed.codec.to_config() == {"id": "negate", "version": 1, "strength": 3}
    assert torch.equal(packed.payloads[0].view(torch.float32), -x)
    assert torch.equal(decompress(packed), x)
    assert from_config(packed.codec.to_config()) == packed.codec


def test_importing_a_codec_waits_until_it_is_asked_for(installed):
    codec_ids()
    assert "thirdparty_codec" not in sys.modules


def test_an_entry_point_under_another_name_is_unknown(installed):
    assert_rejects(lambda: create("other-name"), UnknownCodecError)


def test_an_id_that_another_package_takes_too_is_warned_of_once(tmp_path, monkeypatch, caplog):
    taken = NEGATE.replace('"negate"', '"flat"')
    install(tmp_path, "taker", {"flat": "Negate"}, taken)
    monkeypatch.syspath_prepend(tmp_path)
    assert get("flat") is Flat
    assert get("flat") is Flat
    (record,) = caplog.records
    assert record.message == (
        "codec 'flat' of package 'taker' cannot be used: its id is taken by "
        "tersor.codecs.stream:Flat; update or uninstall 'taker'"
    )
    assert "taker" not in sys.modules


@pytest.mark.parametrize("value", ["Negate", "Negate [fast]", "Inside.Negate"])
def test_a_class_that_its_package_imports_from_elsewhere_keeps_its_id(
    value, tmp_path, monkeypatch, caplog
):
    (tmp_path / "defining.py").write_text(NEGATE, encoding="utf-8")
    source = "from defining import Negate\nclass Inside:\n    Negate = Negate\n"
    install(tmp_path, "passing", {"negate": value}, source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "defining", raising=False)
    monkeypatch.delitem(sys.modules, "passing", raising=False)
    for _ in range(2):
        found, problems = registry.usable_codecs()
        assert not problems
        assert get("negate") in found
    assert not caplog.records


@pytest.mark.parametrize("value", ["Negate [fast]", "", "Negate]"])
def test_an_entry_point_of_any_form_is_compared_with_the_codec_that_has_its_id(
    value, tmp_path, monkeypatch
):
    install(tmp_path, "taker", {"flat": value}, NEGATE)
    monkeypatch.syspath_prepend(tmp_path)
    _, (problem,) = registry.usable_codecs()
    assert "its id is taken by tersor.codecs.stream:Flat" in problem


def test_what_is_no_codec_is_not_registered():
    class Unpromising(Raw):
        codec_id: ClassVar[str] = "unpromising"
        guarantee: ClassVar[str] = ""

    for fault in (Unpromising, Codec, Raw(), 3):
        assert_rejects(lambda fault=fault: register(fault), SpecError)
    assert "unpromising" not in codec_ids()


def test_an_id_is_taken_only_once():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Other(Raw):
        codec_id: ClassVar[str] = "flat"

    assert_rejects(lambda: register(Other), SpecError)
    assert get("flat") is Flat


def test_a_namesake_from_another_package_does_not_replace_a_codec():
    namesake = dataclass(frozen=True, kw_only=True, slots=True)(
        type("Flat", (Raw,), {"codec_id": "flat", "__module__": "elsewhere"})
    )
    assert namesake.__qualname__ == Flat.__qualname__
    assert_rejects(lambda: register(namesake), SpecError)
    assert get("flat") is Flat


def test_registering_the_same_class_again_changes_nothing():
    assert register(Flat) is Flat
    assert get("flat") is Flat


def test_newer_versions_are_refused():
    config = create("flat", bound=Bound.absolute(0.5)).to_config()
    error = assert_rejects(lambda: from_config({**config, "version": 2}), UnsupportedVersionError)
    assert "upgrade" in str(error)
    assert from_config(config) == Flat(bound=Bound.absolute(0.5))


@pytest.mark.parametrize(
    "config",
    [
        None,
        [],
        "flat",
        {},
        {"id": 3, "version": 1},
        {"id": "raw"},
        {"id": "raw", "version": 0},
        {"id": "raw", "version": "1"},
        {"id": "raw", "version": True},
        {"id": "raw", "version": 1, "level": 3},
        {"id": "flat", "version": 1},
        {"id": "flat", "version": 1, "bound": 0.1},
        {"id": "flat", "version": 1, "bound": {}},
        {"id": "flat", "version": 1, "bound": {"absolute": 1, "relative": 1}},
        {"id": "flat", "version": 1, "bound": {"percent": 1}},
        {"id": "flat", "version": 1, "bound": {"absolute": -1}},
        {"id": "flat", "version": 1, "bound": {"absolute": None}},
        {"id": "flat", "version": 1, "bound": {"absolute": True}},
        {"id": "flat", "version": 1, "bound": {"absolute": 10**400}},
        {"id": "flat", "version": 1, "bound": {"absolute": 1}, "lorenzo": 2.0},
        {"id": "flat", "version": 1, "bound": {"absolute": 1}, "lorenzo": True},
        {"id": "flat", "version": 1, "bound": {"absolute": 1}, "block": 32.0},
        {"id": "ans", "version": 1, "bound": {"absolute": 1}, "frequencies": 5},
        {"id": "ans", "version": 1, "bound": {"absolute": 1}, "frequencies": [1, [2]]},
        {"id": "fp8", "version": 1, "format": ["e4m3"]},
        {"id": "group8", "version": 1, "group": "128"},
        {"id": "group8", "version": 1, "hadamard": 1},
    ],
    ids=str,
)
def test_impossible_configs_are_refused(config):
    assert_rejects(lambda: from_config(config), SpecError)


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda"), torch.device("cuda", 1)])
def test_rows_named_for_cuda_takes_rans_unless_told_otherwise(device):
    bound = Bound.relative(0.03)
    assert create("rows", bound=bound, device=device).entropy == "ans"
    assert create("rows", bound=bound, device=device, entropy="huffman").entropy == "huffman"


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 3.5, True, []], ids=repr)
def test_what_is_no_device_is_refused(device):
    error = assert_rejects(
        lambda: create("rows", bound=Bound.relative(0.03), device=device), SpecError
    )
    assert "torch.device or its name" in str(error)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_rows_elsewhere_takes_huffman(device):
    assert create("rows", bound=Bound.relative(0.03), device=device).entropy == "huffman"


def test_a_config_means_the_same_on_every_device():
    config = create("rows", bound=Bound.relative(0.03)).to_config()
    del config["entropy"]
    assert from_config(config).entropy == "huffman"


@pytest.mark.parametrize("codec_id", ["flat", "half", "ans", "auto"])
def test_other_codecs_are_alike_on_every_device(codec_id):
    spec = {"bound": Bound.relative(0.03)} if get(codec_id).takes_bound() else {}
    assert create(codec_id, device="cuda", **spec) == create(codec_id, **spec)


@pytest.mark.parametrize(
    ("call", "is_said"),
    [
        (lambda: create("flat", bound=Bound.relative(5)), True),
        (lambda: compress(torch.randn(100), Bound.relative(1), codec="flat"), True),
        (lambda: create("flat", bound=Bound.relative(0.999)), False),
        (lambda: create("flat", bound=Bound.absolute(5)), False),
        # a controller that moves the bound up to 1
        (lambda: replace(create("flat", bound=Bound.relative(0.5)), bound=Bound.relative(1.0)), False),
    ],
)  # fmt: skip
def test_a_bound_in_percent_is_suspected_once(call, is_said, caplog) -> None:
    registry._warn.cache_clear()
    with caplog.at_level(logging.WARNING, logger="tersor"):
        call(), call()
    found = [line for line in caplog.messages if "for 5 % write Bound.relative(0.05)" in line]
    assert len(found) == is_said
