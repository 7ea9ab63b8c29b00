from __future__ import annotations

import pytest

from tersor.bench.embeddings.planning.description import KEYS, Workload
from tersor.errors import SpecError
from tersor.planning import Cluster, read_cluster_file

TOML = """
ranks_per_node = 8
inter = "400gbit"
intra = "3.6tbit"
latency = "4us"
batch = 131072
compute_ms = 12.5
allreduce_mbytes = 40
overlap = 0.25
efficiency = 0.8
"""


def test_a_file_describes_cluster_and_step(tmp_path):
    (tmp_path / "a.toml").write_text(TOML)
    values = read_cluster_file(tmp_path / "a.toml")
    cluster, workload = Cluster.parse(values), Workload.parse(values)
    assert cluster.ranks_per_node == 8
    assert cluster.inter_bits_per_s == 4e11
    assert cluster.intra_bits_per_s == 3.6e12
    assert cluster.inter_latency_s == 4e-6
    assert workload.rows_per_slice(64) == 2048
    assert (workload.compute_s, workload.allreduce_nbytes) == (0.0125, 4e7)
    assert (workload.overlap, workload.efficiency) == (0.25, 0.8)
    (tmp_path / "b.json").write_text('{"inter": "1gbit", "batch_per_rank": 7}')
    assert Workload.parse(read_cluster_file(tmp_path / "b.json")).rows_per_slice(9) == 7


def test_a_batch_is_that_of_all_ranks_or_of_each():
    given = Workload.parse({"batch_per_rank": 7})
    assert (given.batch, given.rows_per_slice(64)) == (None, 7)
    assert Workload.parse({}).rows_per_slice(64) == 1024
    with pytest.raises(SpecError, match="not both"):
        Workload(batch=7, batch_per_rank=7)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"speed": 3}, "has no 'speed'; it may have ranks_per_node"),
        ({"inter": 100}, "inter must be a text with a unit"),
        ({"inter": "100"}, "as in 100gbit"),
        ({"inter": "0gbit"}, "above 0"),
        ({"inter": "5gbyte"}, "as in 100gbit"),
        ({"latency": "5 parsec"}, "as in 5us"),
        ({"batch": 0}, "whole number from 1"),
        ({"batch": 1.5}, "whole number from 1"),
        ({"batch": True}, "whole number from 1"),
        ({"ranks_per_node": "8"}, "whole number from 1"),
        ({"batch": 8, "batch_per_rank": 8}, "not both"),
        ({"overlap": 1.5}, "from 0 to 1"),
        ({"efficiency": 0}, "above 0"),
        ({"compute_ms": -1}, "from 0"),
        ({"compute_ms": float("nan")}, "from 0"),
        ({"allreduce_mbytes": "many"}, "from 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(values, words):
    with pytest.raises(SpecError, match=words):
        Workload.parse(values), Cluster.parse(values)


def test_every_key_is_an_option():
    from tersor.cli.app import command

    options = {name for p in command().commands["plan"].params for name in p.opts}
    assert {f"--{key.replace('_', '-')}" for key in KEYS} <= options
