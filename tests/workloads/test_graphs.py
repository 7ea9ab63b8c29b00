"""Graphs are read as they were published, no file of theirs runs anything, and bad ones are refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.graph_opening import open_graph
from tersor.workloads.data.graphs import Graph
from tersor.workloads.data.neighbours import drawn_hops, step_nodes
from tersor.workloads.data.pickled_arrays import read_pickled
from tersor.workloads.data.synthetic_graph import SyntheticGraph
from tests.workloads.old_pickles import pickled_array, pickled_csr, pickled_lists, write_planetoid


def neighbours(graph: Graph) -> list[list[int]]:
    return [part.tolist() for part in np.split(graph.indices, graph.indptr[1:-1])]


def test_planetoid_files_give_the_published_graph(tmp_path) -> None:
    wanted = write_planetoid(tmp_path)
    graph = open_graph(tmp_path / "ind.tiny.graph")
    # doubles and loops are gone, and every edge is there from both its ends
    assert neighbours(graph) == [[1, 2], [0], [0], [4], [3, 6], [], [4]]
    sums = wanted["features"].sum(1, keepdims=True)
    scaled = wanted["features"] / np.maximum(sums, 1)
    np.testing.assert_array_equal(graph.features[:4], scaled[:4])
    # the order of test.index, not of the nodes
    np.testing.assert_array_equal(graph.features[[6, 4]], scaled[4:])
    assert not graph.features[5].any()
    assert graph.labels.tolist() == [0, 1, 2, 0, 2, 0, 1]
    assert graph.train.tolist() == [0, 1]
    assert graph.test.tolist() == [6, 4]
    assert open_graph(tmp_path / "ind.tiny").name == "tiny"


def test_the_old_pickles_are_what_python_reads_too() -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert (pickle.loads(pickled_array(values), encoding="latin1") == values).all()
    assert pickle.loads(pickled_lists({3: [1, 2], 5: []})) == {3: [1, 2], 5: []}


class _Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (open, ("harmed", "w"))


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(
    tmp_path, monkeypatch, protocol
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ind.x.graph"
    path.write_bytes(pickle.dumps(_Harmful(), protocol))
    with pytest.raises(
        SpecError, match=r"names \S+\.open, which is part of no array|pickle opcode"
    ):
        read_pickled(path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), np.array([None]), np.float64(1.0), b"bytes", np.array(["text"]), 2**100],
    ids=["set", "object", "objects", "scalar", "bytes", "texts", "long"],
)
def test_anything_but_arrays_is_refused(tmp_path, value) -> None:
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps(value, 2))
    if value == 2**100:
        # a number alone is harmless; it is no graph
        assert read_pickled(path) == value
        return
    with pytest.raises((SpecError, CorruptDataError)):
        read_pickled(path)


def test_a_damaged_pickle_is_refused_wherever_it_is_cut(tmp_path) -> None:
    path = tmp_path / "file"
    dense = np.array([[0.0, 2.0], [3.0, 0.0]])
    for whole in (pickled_csr(dense), pickled_lists({0: [1], 1: [0]})):
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises((CorruptDataError, SpecError)):
                read_pickled(path)


def test_changed_bytes_are_refused_or_read_as_arrays(tmp_path) -> None:
    path, rng = tmp_path / "file", np.random.default_rng(0)
    whole = np.frombuffer(pickled_csr(np.eye(3)), np.uint8)
    for _ in range(300):
        damaged = whole.copy()
        damaged[rng.integers(len(whole))] = rng.integers(256)
        path.write_bytes(damaged.tobytes())
        try:
            read_pickled(path)
        except (CorruptDataError, SpecError):
            continue


def test_planetoid_files_that_do_not_fit_are_refused(tmp_path) -> None:
    write_planetoid(tmp_path)
    (tmp_path / "ind.tiny.test.index").write_text("6\nx\n")
    with pytest.raises(CorruptDataError, match=r"test\.index must have a number per line"):
        open_graph(tmp_path / "ind.tiny.graph")
    (tmp_path / "ind.tiny.test.index").write_text("6\n7\n")
    with pytest.raises(CorruptDataError, match="do not fit each other"):
        open_graph(tmp_path / "ind.tiny.graph")
    (tmp_path / "ind.tiny.ty").unlink()
    with pytest.raises(SpecError, match=r"ind\.tiny\.ty cannot be read: No such file"):
        open_graph(tmp_path / "ind.tiny.graph")


def test_an_npz_file_gives_its_graph(tmp_path, monkeypatch) -> None:
    (tmp_path / "graphs").mkdir()
    edges = {"indptr": np.array([0, 1, 2]), "indices": np.array([1, 0])}
    np.savez(tmp_path / "graphs/edges.npz", **edges)
    split = {"labels": np.array([1, 0]), "train": np.array([0]), "test": np.array([1])}
    np.savez(tmp_path / "graphs/all.npz", **edges, **split, features=np.eye(2, dtype=np.float32))
    monkeypatch.setenv("TERSOR_DATA", str(tmp_path))
    graph = open_graph("all")
    graph.check_trainable()
    assert (graph.name, graph.num_classes, neighbours(graph)) == ("all", 2, [[1], [0]])
    bare = open_graph("edges")
    with pytest.raises(SpecError, match="only edges; choose another graph, or measure it"):
        bare.check_trainable()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indices": None}, "needs the arrays indptr and indices"),
        ({"indices": np.array([1, 2])}, "names a node that is none of its 2"),
        ({"indptr": np.array([0, 1, 3])}, "indptr must go from 0 to the number of indices"),
        ({"indptr": np.array([0, 3, 2])}, "indptr must not fall"),
        ({"indptr": np.array([0.0, 1.0, 2.0])}, "indptr must be whole numbers along one axis"),
        ({"labels": np.array([0])}, "has 2 nodes, features of 2 and classes of 1"),
        ({"labels": np.array([0, -1])}, "has a class below 0"),
        ({"features": np.zeros(2)}, "features must be numbers"),
    ],
)
def test_another_npz_file_is_refused(tmp_path, changes, words) -> None:
    known = {
        "indptr": np.array([0, 1, 2]), "indices": np.array([1, 0]), "features": np.eye(2),
        "labels": np.array([0, 1]), "train": np.array([0]), "test": np.array([1]), **changes,
    }  # fmt: skip
    np.savez(tmp_path / "g.npz", **{name: x for name, x in known.items() if x is not None})
    with pytest.raises(SpecError, match=words):
        open_graph(tmp_path / "g.npz")


def test_what_is_not_there_is_reported_with_the_way_out(tmp_path) -> None:
    (tmp_path / "g.npz").write_bytes(b"PK")
    with pytest.raises(CorruptDataError, match=r"is damaged, or no \.npz file"):
        open_graph(tmp_path / "g.npz")
    with pytest.raises(SpecError, match=r"there is no .*; name an \.npz file"):
        open_graph(tmp_path / "none.npz")
    with pytest.raises(SpecError, match="only the synthetic graph has a number of nodes"):
        open_graph(tmp_path / "g.npz", num_nodes=5)


@pytest.mark.parametrize("homophily", [0.0, 0.8, 1.0])
def test_a_made_up_graph_is_as_homophilous_as_it_was_asked_to_be(homophily) -> None:
    graph = SyntheticGraph(num_nodes=4000, homophily=homophily).graph()
    rows = np.repeat(np.arange(4000), graph.degrees)
    same = (graph.labels[rows] == graph.labels[graph.indices]).mean()
    # of the others, an eighth falls into the class by chance
    assert same == pytest.approx(homophily + (1 - homophily) / 8, abs=0.02)
    assert graph.degrees.mean() == pytest.approx(5, rel=0.02)
    assert not set(graph.train.tolist()) & set(graph.test.tolist())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_nodes": 100}, "20 nodes and a feature for each"),
        ({"num_features": 4}, "20 nodes and a feature for each"),
        ({"homophily": 1.5}, "shares, from 0 to 1"),
    ],
)
def test_an_impossible_graph_is_refused(options, words) -> None:
    with pytest.raises(SpecError, match=words):
        SyntheticGraph(**options)


def test_drawn_neighbours_are_neighbours_and_lead_to_the_nodes() -> None:
    graph = SyntheticGraph(num_nodes=400, degree=3, num_classes=4).graph()
    lonely = int(np.flatnonzero(graph.degrees == 0)[0])
    nodes = np.array([17, lonely, 3])
    assert lonely not in (3, 17)
    hops = drawn_hops(graph, nodes, (4, 2), seed=1, step=5)
    asked = nodes
    for hop, fanout in zip(reversed(hops), (2, 4), strict=True):
        assert hop.nodes[: len(asked)].tolist() == asked.tolist()
        assert len(np.unique(hop.nodes)) == len(hop.nodes)
        for place, node in enumerate(asked):
            drawn = hop.nodes[hop.columns[hop.indptr[place] : hop.indptr[place + 1]]]
            own = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
            assert len(drawn) == (fanout if len(own) else 0)
            assert set(drawn.tolist()) <= set(own.tolist())
        asked = hop.nodes
    again = drawn_hops(graph, nodes, (4, 2), seed=1, step=5)
    assert all((one.columns == other.columns).all() for one, other in zip(hops, again, strict=True))
    other = drawn_hops(graph, nodes, (4, 2), seed=1, step=6)
    assert hops[0].columns.tolist() != other[0].columns.tolist()


def test_an_epoch_has_every_node_once() -> None:
    train = np.arange(10, 22)
    for epoch in (0, 1):
        steps = [step_nodes(train, 0, 3 * epoch + step, 4) for step in range(3)]
        assert sorted(np.concatenate(steps).tolist()) == train.tolist()
    assert step_nodes(train, 0, 0, 4).tolist() != step_nodes(train, 0, 3, 4).tolist()
