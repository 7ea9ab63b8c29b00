from __future__ import annotations

import pytest

from tersor.errors import SpecError
from tersor.planning import Cluster, parse_bandwidth, parse_seconds, parse_sweep, read_cluster_file


def test_ranks_of_one_node_are_planned_by_the_links_within_it():
    cluster = Cluster.parse({"ranks_per_node": 8})
    assert cluster.with_bandwidth(1e9, 8).intra_bits_per_s == 1e9
    assert cluster.with_bandwidth(1e9, 8).inter_bits_per_s == cluster.inter_bits_per_s
    assert cluster.with_bandwidth(1e9, 16).inter_bits_per_s == 1e9
    assert cluster.with_bandwidth(1e9, 16).bandwidth(16) == 1e9


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.toml", b"inter = "), ("a.json", b"{"), ("b.json", b"[]"), ("c.toml", b"\xff\xfe\x00")],
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SpecError, match=r"docs/plan\.md"):
        read_cluster_file(tmp_path / name)


def test_units_are_read():
    assert parse_bandwidth(" 100 Mbit/s ") == 1e8
    assert parse_seconds("0.5ms") == 5e-4
    assert parse_sweep("1gbit..2gbit") == (1e9, 2e9)
    for text in ("1gbit", "2gbit..1gbit", "1gbit..", "a..b"):
        with pytest.raises(SpecError):
            parse_sweep(text)
