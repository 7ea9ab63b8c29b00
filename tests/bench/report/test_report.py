"""A report of any runs: complete, escaped, and refused in one sentence where there is nothing to show."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from tersor.bench.core.blocks import Memory, Quality
from tersor.bench.report import Page, build_report, read_runs
from tersor.bench.report.codec_figures import pareto_front
from tersor.bench.report.links import best_codecs
from tersor.bench.report.measured import comparable, measured
from tersor.bench.report.runs import AccuracyRun, RowsRun
from tersor.bench.sites import report_sections
from tersor.errors import CorruptDataError, SpecError
from tests.arch.source_files import REPOSITORY
from tests.bench.report import runs as made

HOSTILE = "<img src=x onerror=alert(1)>\x1b"


class Outline(HTMLParser):
    """Tables as lists of texts, and whether every tag was closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: list[str] = []
        self._open: list[str] = []
        self._name = ""
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link", "br"):
            self._open.append(tag)
        if tag == "caption":
            self._name = ""
        if tag == "tr":
            self.tables.setdefault(self._name, []).append([])
        if tag in ("td", "th"):
            self.tables[self._name][-1].append("")

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data) -> None:
        if "caption" in self._open:
            self._name += data
        elif self._open[-1:] in (["td"], ["th"]):
            self.tables[self._name][-1][-1] += data


def report_of(*paths) -> Page:
    return build_report(
        read_runs([str(path) for path in paths]),
        report_sections(),
        title="a report",
        command="tersor report",
    )


@pytest.fixture
def every(tmp_path) -> Page:
    return report_of(*made.write_all(tmp_path))


def test_the_page_is_well_formed_and_asks_for_nothing(every) -> None:
    text = every.render()
    outline = Outline(text)
    assert outline.tags.count("h1") == 1
    assert outline.tags.count("main") == 1
    assert not re.search(r"https?:", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))


def test_every_figure_is_well_formed_xml(every) -> None:
    assert every.figures
    for figure in every.figures.values():
        ET.fromstring(figure.svg)


def test_each_kind_of_figure_appears_where_rows_allow_it(every) -> None:
    kinds = (
        "kernels-ratio-encode", "kernels-ratio-decode", "kernels-bandwidth", "kernels-roofline-encode",
        "kernels-rate-distortion", "exchanges-speedup-forward", "exchanges-speedup-step",
        "accuracy-auc", "accuracy-auc-change", "accuracy-tables", "quickstart-auc",
        "plan-predictions", "lookups-ratio-encode", "lookups-tables", "quickstart-tables", "training-auc", "training-training-loss", "training-tables",
    )  # fmt: skip
    for kind in kinds:
        assert any(name.startswith(kind) for name in every.figures), kind


def test_a_figure_that_rows_do_not_allow_is_absent(tmp_path) -> None:
    page = report_of(
        made.write_lines(tmp_path / "one.jsonl", [made.kernel_row("flat", memcpy_s=None)])
    )
    assert page.figures == {}


def test_every_row_stands_in_a_table(tmp_path) -> None:
    rows = [*made.kernel_rows(), made.kernel_row("elsewhere", input="field"), made.kernel_row("twice"),
            made.kernel_row("twice")]  # fmt: skip
    outline = Outline(report_of(made.write_lines(tmp_path / "all.jsonl", rows)).render())
    lines = [
        line
        for name, table in outline.tables.items()
        if name.startswith("All rows")
        for line in table[1:]
    ]
    assert sorted(line[0] for line in lines) == sorted(row.codec for row in rows)


def test_exchanges_of_one_direction_are_not_lost(tmp_path) -> None:
    rows = [*made.exchange_rows(), made.exchange_row("alone", "forward", "1gbit", 0.1)]
    outline = Outline(report_of(made.write_lines(tmp_path / "x.jsonl", rows)).render())
    shown = [cell for table in outline.tables.values() for line in table for cell in line]
    assert {"float32", "half", "rows", "alone"} <= set(shown)


def test_measured_speedups_are_times_of_float32_over_own_times(tmp_path) -> None:
    from tersor.bench.embeddings.report.exchanges import speedups

    found = speedups(made.exchange_rows())
    assert found["step", "dlrm-small", 4, 2048]["rows"] == [
        (0.1, pytest.approx(8)),
        (1.0, pytest.approx(2)),
    ]
    assert "float32" not in found["step", "dlrm-small", 4, 2048]


def test_exchanges_on_one_link_are_bars_and_not_one_column_of_a_line(tmp_path) -> None:
    rows = [row for row in made.exchange_rows() if row.exchange.link == "1gbit"]
    page = report_of(made.write_lines(tmp_path / "x.jsonl", rows))
    figure = ET.fromstring(page.figures["x-speedup-step-dlrm-small-4-2048"].svg)
    svg = "{http://www.w3.org/2000/svg}"
    bars = figure.findall(f"{svg}g/{svg}path")
    assert [bar.get("d").endswith("z") for bar in bars] == [True] * 3
    titles = [title.text for title in figure.iter(f"{svg}title")]
    assert titles == ["float32: 1", "rows: 2", "half: 2"]
    words = {text.text for text in figure.iter(f"{svg}text")}
    assert "times faster than float32" in words
    assert "link of 1 Gbit/s" in figure.get("aria-label")


def test_where_no_codec_pays_float32_is_as_fast_as_itself(tmp_path) -> None:
    slow = {"encode_s": made.seconds(0.005), "decode_s": made.seconds(0.005)}
    rows = [made.kernel_row(codec, **slow) for codec in ("flat", "rows")]
    page = report_of(made.write_lines(tmp_path / "k.jsonl", rows)).render()
    [table] = [
        table
        for name, table in Outline(page).tables.items()
        if name.startswith("Predicted fastest codec")
    ]
    fastest = {line[0]: line for line in table[1:]}
    # 0.84 GB/s each way, where 25 Gbit/s are 3.125 GB/s: 1 / (1 / 8 + 3.125 * 2 / 0.84)
    _, _, name, gain, ratio, *speeds = fastest["25"]
    assert (gain, ratio, speeds) == ("1.00", "1.0", ["", ""])
    assert name == "float32 as it is (flat would reach 0.13)"


def test_the_environment_and_the_commands_are_those_of_the_rows(every) -> None:
    text = every.render()
    for words in (
        "Some CPU", "torch 2.13.0", "0123456789ab", "tersor train dlrm --steps 20", "tersor quickstart",
    ):  # fmt: skip
        assert words in text, words


def test_commands_are_shown_as_they_were_typed_and_none_is_made_up() -> None:
    row, typed = made.kernel_row("flat"), "tersor bench kernels --device cpu"
    rows = [replace(row, command=typed), replace(row, codec="rows", command=typed), row]
    text = build_report([RowsRun("r", "r.jsonl", rows)], report_sections(), title="t").render()
    assert text.count("<pre>") == text.count(f"<pre><code>{typed}</code></pre>") == 1
    text = build_report([RowsRun("r", "r.jsonl", [row])], report_sections(), title="t").render()
    assert "<pre>" not in text
    assert "From r.jsonl." in text


def test_commands_of_pairs_of_trainings_are_shown_too() -> None:
    pairs = [{**made.pair(0), "command": "tersor bench accuracy"}, made.pair(1)]
    text = build_report([AccuracyRun("r", "r.jsonl", pairs)], report_sections(), title="t").render()
    assert text.count("<pre>") == text.count("<code>tersor bench accuracy</code>") == 1


def test_hostile_names_stay_text(tmp_path) -> None:
    rows = [
        made.kernel_row(
            HOSTILE, input=HOSTILE, note=HOSTILE, version=HOSTILE, group=group, bound=bound
        )
        for group in (None, HOSTILE, "b")
        for bound in (0.01, 0.03)
    ]
    rows += [
        made.exchange_row(HOSTILE, "forward", HOSTILE, 0.1),
        made.exchange_row("float32", "forward", HOSTILE, 1),
    ]
    lines = [{**made.pair(0), "source": HOSTILE}]
    page = report_of(
        made.write_lines(tmp_path / "a.jsonl", rows), made.write_lines(tmp_path / "b.jsonl", lines)
    )
    text = page.render()
    assert "img" not in Outline(text).tags
    assert "\x1b" not in text
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in page.figures)
    for figure in page.figures.values():
        ET.fromstring(figure.svg)


def test_codecs_that_start_from_codes_are_in_the_table_but_in_no_figure() -> None:
    rows = comparable(made.kernel_rows())
    assert "huffman-codes" not in {row.codec for row in rows}


def test_of_two_builds_the_later_one_counts_alone() -> None:
    old, new = (
        made.kernel_row("rows", version=version, git_commit=version, encoded_nbytes=size)
        for version, size in (("1", 1 << 19), ("2", 1 << 18))
    )
    [found] = measured(comparable([old, new]), 0.03, 1)
    assert found.ratio == 16


def test_tables_count_by_volume_and_not_as_a_mean_of_ratios() -> None:
    rows = [
        made.kernel_row("rows", group=name, original_nbytes=size, encoded_nbytes=encoded)
        for name, size, encoded in (("a", 1000, 10), ("b", 1000, 500))
    ]
    [found] = measured(comparable(rows), 0.03, 1)
    assert found.ratio == pytest.approx(2000 / 510)


def test_tables_with_different_bounds_count_together(tmp_path) -> None:
    page = report_of(made.write_lines(tmp_path / "l.jsonl", made.lookup_rows()))
    # 3 tables of 1024 bytes, which rows makes 10, 20 and 30
    assert "rows is smallest: 51.2 times, by volume" in page.render()


def test_no_point_of_the_front_is_beaten() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0), (2.0, 2.0), (4.0, 1.0)]
    front = pareto_front(points)
    for x, y in points:
        beaten = any(u >= x and v >= y and (u, v) != (x, y) for u, v in points)
        assert ((x, y) in front) == (not beaten)


def test_the_advice_changes_with_the_bandwidth() -> None:
    slow = made.kernel_row("small", encoded_nbytes=1 << 16, encode_s=made.seconds(0.004))
    fast = made.kernel_row("quick", encoded_nbytes=1 << 20, encode_s=made.seconds(0.0002))
    found = best_codecs(measured([slow, fast], 0.03, 1), [1.0, 400.0])
    assert [(link, one.codec) for link, one, _ in found] == [(1.0, "small"), (400.0, "quick")]


def test_readers_choose_among_codecs_that_hold_the_bound_alone() -> None:
    rows = [made.kernel_row(codec) for codec in ("flat", "rows", "memcpy")]
    rows.append(made.kernel_row("broken", worst_error=2.0))
    assert encoders_in(rows) == [["flat", "rows"]]
    # there is nothing to choose from one
    assert encoders_in(rows[1:]) == []


def test_look_ups_may_be_sent_by_what_stays_within_the_bounds_unasked() -> None:
    fast = {"encode_s": made.seconds(1e-7), "decode_s": made.seconds(1e-7)}
    rows = [replace(row, **fast) for row in made.lookup_rows()]
    free = [
        replace(row, codec="half", spec={}, error_bound=None) for row in rows if row.codec == "flat"
    ]
    coarse = [
        replace(row, codec="fp8", lookups=replace(row.lookups, error_share=1.5)) for row in free
    ]
    assert encoders_in([*rows, *free, *coarse]) == [["rows", "flat", "half (no bound)"]]
    page = build_report([RowsRun("n", "p", [*rows, *free, *coarse])], report_sections(), title="t")
    assert "because they went beyond a bound: fp8." in page.render()
    (figure,) = (page.figures[name].svg for name in page.figures if "bandwidth" in name)
    assert "fp8" not in figure
    faster = [replace(row, encode_s=made.seconds(1e-9)) for row in free]
    page = build_report([RowsRun("n", "p", [*rows, *faster])], report_sections(), title="t")
    (figure,) = (page.figures[name].svg for name in page.figures if "bandwidth" in name)
    assert "half (no bound)" in figure


def encoders_in(rows) -> list[list[str]]:
    page = build_report([RowsRun("name", "path", rows)], report_sections(), title="t").render()
    found = re.findall(r'data-encoders="([^"]*)"', page)
    return [[name for name, *_ in json.loads(html.unescape(text))] for text in found]


def test_a_codec_that_broke_its_bound_is_marked_and_never_advised() -> None:
    broken = made.kernel_row("broken", encoded_nbytes=1, worst_error=2.0)
    found = measured([broken, made.kernel_row("flat")], 0.03, 1)
    assert [one.name for one in found] == ["broken!", "flat"]
    assert {one.codec for _, one, _ in best_codecs(found, [1.0, 400.0])} == {"flat"}


def test_a_torn_last_line_is_left_out(tmp_path) -> None:
    file = made.write_lines(tmp_path / "torn.jsonl", made.kernel_rows())
    file.write_text(file.read_text() + '{"schema": 1, "su')
    [run] = read_runs([str(file)])
    assert len(run.rows) == len(made.kernel_rows())


def test_files_of_one_name_are_told_apart_by_their_paths(tmp_path) -> None:
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(str(made.write_lines(tmp_path / folder / "k.jsonl", made.kernel_rows())))
    assert [run.name for run in read_runs(paths)] == paths
    assert [run.name for run in read_runs(paths[:1])] == ["k"]


def test_a_folder_of_result_files_stands_for_each_of_them(tmp_path) -> None:
    for name in ("a", "b"):
        made.write_lines(tmp_path / f"{name}.jsonl", made.kernel_rows())
    assert [run.name for run in read_runs([str(tmp_path)])] == ["a", "b"]


BROKEN_ROW = made.kernel_row("flat").to_config()
LOOKUP_ROW = made.lookup_rows()[0].to_config()
BAD_LOOKUPS = {**LOOKUP_ROW["lookups"], "num_distinct": "x"}
BAD_LINES = {
    "not JSON": "nonsense\n",
    "nested": "[" * 100_000 + "\n",
    "no codec": json.dumps({**BROKEN_ROW, "codec": 5}) + "\n",
    "bytes as text": json.dumps({**BROKEN_ROW, "original_nbytes": "many"}) + "\n",
    "huge bytes": json.dumps({**BROKEN_ROW, "original_nbytes": 10**400}) + "\n",
    "no time": json.dumps({**BROKEN_ROW, "encode_s": {"p20": 1, "p50": "x", "p80": 1}}) + "\n",
    "bound as text": json.dumps({**BROKEN_ROW, "spec": {"bound": {"relative": "x"}}}) + "\n",
    "look-ups as text": json.dumps({**LOOKUP_ROW, "lookups": BAD_LOOKUPS}) + "\n",
    "machine as text": json.dumps({**BROKEN_ROW, "machine": "x"}) + "\n",
    "pair without curves": json.dumps({"suite": "accuracy", "seed": 0}) + "\n",
    "no prediction": json.dumps({**made.prediction(1, 1), "measured_s": 0}) + "\n",
    "log without step": '{"kind": "eval", "step": -1}\n',
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_damaged_file_is_refused_with_its_line(kind, tmp_path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(BAD_LINES[kind])
    with pytest.raises(CorruptDataError, match=r"line 1 of .*bad\.jsonl"):
        read_runs([str(file)])


@pytest.mark.parametrize("line", ['{"some": "thing"}', "[1, 2]", "5", '"text"', "null"])
def test_a_file_of_another_kind_is_reported_to_be_so(line, tmp_path) -> None:
    (tmp_path / "x.jsonl").write_text(f"{line}\n")
    with pytest.raises(SpecError, match="nothing that reports are made of"):
        read_runs([str(tmp_path / "x.jsonl")])


def test_what_is_no_text_is_refused(tmp_path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CorruptDataError, match="not text"):
        read_runs([str(tmp_path / "x.jsonl")])


def test_an_empty_file_and_an_empty_folder_are_refused(tmp_path) -> None:
    with pytest.raises(SpecError, match="holds no run"):
        read_runs([str(tmp_path)])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(SpecError, match="holds no rows"):
        read_runs([str(tmp_path / "empty.jsonl")])


@pytest.mark.parametrize(
    "links",
    [[], {"steps": []}, {"how": "so", "steps": [{"gbit_s": "1"}], "pays_up_to_gbit_s": 1.0}],
)
def test_a_quickstart_with_strange_links_is_refused(links, tmp_path) -> None:
    made.write_all(tmp_path)
    file = tmp_path / "quickstart" / "result.json"
    file.write_text(json.dumps({**made.quickstart_result(), "links": links}))
    with pytest.raises(CorruptDataError, match="links"):
        read_runs([str(tmp_path / "quickstart")])


def test_axes_of_trainings_say_what_they_show(every) -> None:
    shown = {"auc": "AUC", "logloss": "logloss", "training-loss": "loss"}
    for kind, label in shown.items():
        [figure] = [f for name, f in every.figures.items() if name.startswith(f"quickstart-{kind}")]
        texts = [
            text.text for text in ET.fromstring(figure.svg).iter() if text.tag.endswith("text")
        ]
        assert {label, "step"} <= set(texts), kind


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", ".."])
def test_a_quickstart_cannot_name_logs_outside_its_folder(name, tmp_path) -> None:
    result = made.quickstart_result()
    result["runs"] = {name: result["runs"]["adaptive"]}
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(CorruptDataError, match="file name"):
        read_runs([str(tmp_path)])


def test_numbers_that_are_not_finite_can_be_shown(tmp_path) -> None:
    rows = [
        {**row.to_config(), "worst_error": float("nan"), "entropy_bits": float("inf")}
        for row in made.kernel_rows()
    ]
    lines = [{**made.pair(seed, float("nan"))} for seed in range(2)]
    report_of(
        made.write_lines(tmp_path / "a.jsonl", rows), made.write_lines(tmp_path / "b.jsonl", lines)
    ).render()


def test_a_report_of_all_committed_results_stays_small() -> None:
    page = report_of(REPOSITORY / "results")
    assert len(page.render()) < 6e6
    assert len(page.figures) > 20


def test_quality_and_memory_of_rows_are_columns() -> None:
    plain = made.kernel_row("flat")
    fine = made.kernel_row("rows", quality=Quality(psnr_db=41.25), memory=Memory(held_nbytes=2**21))
    page = build_report([RowsRun("r", "r.jsonl", [plain, fine])], report_sections(), title="t")
    text = page.render()
    assert "PSNR dB" in text
    assert ">41.25<" in text
    assert "held MiB" in text
    assert "peak MiB" not in text
