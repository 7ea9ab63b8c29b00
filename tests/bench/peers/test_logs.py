from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tersor.bench.peers.logs import FORMATS, ParsedLog, parse_log
from tersor.bench.peers.logs.rows import LogFacts, rows_from_runs
from tersor.errors import CorruptDataError, SpecError
from tests.bench.peers.log_samples import (
    CUSZ,
    CUSZ_NEW,
    GPULZ,
    NVCOMP,
    NVCOMP_CSV,
    SAMPLES,
    SZ3,
    logged,
)

MIB = 2**20


def only_run(text, name):
    parsed = parse_log(text, name, "the.log")
    assert parsed.complaints == []
    (run,) = parsed.runs
    return run


def rows_of(text, name, **facts):
    parsed = parse_log(text, name, "the.log")
    assert parsed.complaints == []
    return list(rows_from_runs(parsed.runs, LogFacts(where="the.log", **facts)))


def test_nvcomp_counts_uncompressed_bytes_in_units_of_1e9():
    run = only_run(logged("/opt/bin/benchmark_lz4_chunked -f /data/EMB_3.bin", NVCOMP), "nvcomp")
    assert (run.codec, run.input, run.device) == ("nvcomp-lz4-chunked", "EMB_3.bin", "cuda")
    assert (run.given_nbytes, run.encoded_nbytes, run.ratio) == (16 * MIB, MIB, 16.0)
    assert run.encode_seconds(16 * MIB) == pytest.approx(16 * MIB / 5.5e9)
    assert run.decode_seconds(16 * MIB) == pytest.approx(1e-3, rel=1e-4)


@pytest.mark.parametrize("separator", [",", "\t"])
def test_nvcomp_s_csv_holds_the_same_figures_and_how_often_data_was_repeated(separator):
    run = only_run(NVCOMP_CSV.replace(",", separator), "nvcomp")
    assert (run.given_nbytes, run.encoded_nbytes, run.repeat) == (16 * MIB, MIB, 4)
    assert run.encode_gbps == 5.5


def test_repeated_input_is_marked_whether_csv_or_the_command_says_so():
    run = only_run(logged("benchmark_ans_chunked -f a b -x 128 -p 32768", NVCOMP), "nvcomp")
    assert (run.input, run.repeat, run.spec) == ("a", 128, {"chunk_nbytes": 32768})


def test_gpulz_s_units_are_mib_per_millisecond():
    run = only_run(GPULZ, "gpulz")
    # 20 MiB in a millisecond
    assert run.encode_seconds(20 * MIB) == pytest.approx(1e-3)
    assert run.decode_seconds(4 * MIB) == pytest.approx(1e-3)
    assert run.encoded_size(1000) == 400


def test_gpulz_that_calls_both_directions_compression_is_read_in_order():
    run = only_run(GPULZ.replace("decompression", "compression"), "gpulz")
    assert run.decode_seconds(4 * MIB) == pytest.approx(1e-3)


def test_cusz_s_times_count_and_not_its_throughput_of_four_bytes_per_code():
    run = only_run(CUSZ, "cusz")
    assert (run.value_nbytes, run.given_nbytes, run.encoded_nbytes) == (1, 16 * MIB, 6932734)
    assert (run.encode_s, run.decode_s) == (0.25e-3, 1e-3)
    assert run.ratio == pytest.approx(2.42, abs=0.005)


def test_cusz_of_today_says_bytes_and_type():
    run = only_run(logged("./bin_phf /data/codes.u2 4096 4096 1 1024 --type u2", CUSZ_NEW), "cusz")
    assert (run.value_nbytes, run.given_nbytes, run.encoded_nbytes) == (2, 32 * MIB, 8 * MIB)
    assert (run.encode_s, run.decode_s, run.input) == (0.25e-3, 1e-3, "codes.u2")


def test_sz3_s_size_comes_from_the_dimensions_and_its_ratio_from_the_longer_figure():
    run = only_run(logged("sz3 -f -i /d/x.f32 -o x.out -2 100 200 -M REL 0.01 -a", SZ3), "sz3")
    assert (run.given_nbytes, run.input, run.device) == (80_000, "x.f32", "cpu")
    assert run.ratio == 3.317712
    assert (run.encode_s, run.decode_s) == (0.001664, 0.00092)
    assert run.spec == {"bound": {"relative": 0.01}}
    assert "two digits" in run.note


@pytest.mark.parametrize("bound", ["0", "nan", "inf", "-1", ""])
def test_what_is_no_bound_above_0_is_none(bound):
    run = only_run(logged(f"sz3 -f -i x -o y -1 1000 -M REL {bound}", SZ3), "sz3")
    assert run.spec == {}


@pytest.mark.parametrize("kind", ["-d", "-I 64"])
def test_sz3_s_wide_types_have_eight_bytes(kind):
    run = only_run(logged(f"sz3 {kind} -i x -o y -1 1000 -M ABS 1e-3", SZ3), "sz3")
    assert (run.given_nbytes, run.spec) == (8000, {"bound": {"absolute": 1e-3}})


def test_sz3_s_two_directions_may_be_two_commands():
    compress, decompress = (
        SZ3[: SZ3.index("Min=")],
        SZ3[SZ3.index("compression ratio = 3.317712") :],
    )
    text = (
        f"$ sz3 -f -i x -z x.sz -1 9 -M ABS 1\n{compress}$ sz3 -f -z x.sz -o y -1 9\n{decompress}"
    )
    run = only_run(text, "sz3")
    assert (run.encode_s, run.decode_s, run.ratio) == (0.001664, 0.00092, 3.317712)


@pytest.mark.parametrize("name", FORMATS)
def test_runs_follow_each_other_with_or_without_their_commands(name):
    bare = parse_log(SAMPLES[name] * 3, name, "the.log")
    assert (len(bare.runs), bare.complaints) == (3, [])
    assert [run.line for run in bare.runs] == sorted({run.line for run in bare.runs})


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_from_a_terminal_or_windows_is_read_too(name):
    coloured = "".join(f"\x1b[32m{line}\x1b[0m\r\n" for line in SAMPLES[name].splitlines())
    assert len(parse_log(coloured, name, "the.log").runs) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_that_ends_anywhere_gives_a_whole_run_or_one_sentence_with_its_line(name):
    sample = SAMPLES[name]
    first, whole = parse_log(f"noise\n{sample}{sample}", name, "the.log").runs
    num_cut = 0
    for end in range(len(sample)):
        parsed = parse_log(f"noise\n{sample}{sample[:end]}", name, "the.log")
        assert parsed.runs[0] == first
        if len(parsed.runs) == 2:
            # all that counts had been printed
            assert (parsed.runs[1].encode_s, parsed.runs[1].decode_s) == (
                whole.encode_s,
                whole.decode_s,
            )
            assert parsed.runs[1].encode_gbps == whole.encode_gbps
            assert parsed.runs[1].decode_gbps == whole.decode_gbps
        for sentence in parsed.complaints:
            assert sentence.startswith(
                f"line {whole.line} of the.log: the run that begins here has no"
            )
            num_cut += 1
    assert num_cut > 0


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_of_something_else_is_refused_with_what_was_looked_for(name):
    text = "epoch 1: loss 0.25\nepoch 2: loss 0.125\n"
    with pytest.raises(CorruptDataError, match=r"no line of the\.log, from line 1 on, is from"):
        parse_log(text, name, "the.log")
    with pytest.raises(CorruptDataError, match="--format"):
        parse_log("", name, "the.log")
    with pytest.raises(CorruptDataError, match="--format"):
        parse_log("\0\x01\x02" * 99, name, "the.log")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("other", FORMATS)
def test_a_log_of_another_program_is_refused_with_its_format(name, other):
    if name == other:
        return
    with pytest.raises(CorruptDataError, match=f"--format {name} fits it"):
        parse_log(SAMPLES[name], other, "the.log")


def test_an_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(SpecError, match="nvcomp, gpulz, cusz, sz3, not 'lz4'"):
        parse_log(NVCOMP, "lz4", "the.log")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nvcomp", "CUDA error: out of memory"),
        ("nvcomp", "ERROR: Must specify at least one input file."),
        ("gpulz", "verification failed!!! Index 17 is wrong"),
        ("cusz", "!!!!  ERROR: NOT IDENTICAL."),
        ("sz3", "Error, Couldn't find the file: x"),
        ("sz3", "terminate called after throwing an instance of 'std::invalid_argument'"),
    ],
)
def test_a_run_that_says_it_failed_is_no_result(name, line):
    good, bad = SAMPLES[name], SAMPLES[name] + line + "\n"
    parsed = parse_log(good + bad, name, "the.log")
    assert len(parsed.runs) == 1
    (sentence,) = parsed.complaints
    assert "failed" in sentence
    assert line in sentence


def test_a_command_that_printed_nothing_is_a_complaint_and_not_a_gap():
    text = logged("gpulz -i a", GPULZ) + logged("gpulz -i b", "") + logged("gpulz -i c", GPULZ)
    parsed = parse_log(text, "gpulz", "the.log")
    assert [run.input for run in parsed.runs] == ["a", "c"]
    assert parsed.complaints[0].startswith("line 6 of the.log")


@pytest.mark.parametrize("figure", ["inf", "nan", "0.0000", "-1", "12..5", "many"])
def test_a_figure_that_is_no_positive_number_is_named_with_its_line(figure):
    (sentence,) = parse_log(NVCOMP.replace("5.5000", figure), "nvcomp", "the.log").complaints
    assert sentence == f"line 5 of the.log gives {figure} where a number above 0 belongs"


def test_a_size_that_is_no_whole_number_is_named_with_its_line():
    text = re.sub(r"comp_size: \d+", "comp_size: 0.5", NVCOMP)
    (sentence,) = parse_log(text, "nvcomp", "the.log").complaints
    assert sentence.endswith("of the.log gives 0.5 where a whole number belongs")


def test_a_ratio_that_contradicts_the_sizes_is_refused():
    (sentence,) = parse_log(CUSZ.replace("2.42", "3.42"), "cusz", "the.log").complaints
    assert sentence.startswith("line 8 of the.log: a ratio of 3.42 does not follow")


@given(
    st.lists(
        st.sampled_from([line for sample in SAMPLES.values() for line in sample.splitlines()])
        | st.text(max_size=30),
        max_size=30,
    ),
    st.sampled_from(sorted(FORMATS)),
)
def test_any_mixture_of_lines_gives_runs_or_sentences(lines, name):
    text = "\n".join(lines)
    try:
        parsed = parse_log(text, name, "the.log")
    except CorruptDataError:
        # nothing in it was from the program
        parsed = ParsedLog([], [])
    for run in parsed.runs:
        assert run.ratio > 0
        assert run.encode_seconds(10**6) > 0
        assert run.decode_seconds(10**6) > 0
    assert all("line " in sentence for sentence in parsed.complaints)


def test_codes_are_counted_as_the_float32_they_stand_for():
    as_codes = rows_of(NVCOMP, "nvcomp", codec="nvcomp-lz4-chunked", value_nbytes=1)[0]
    as_values = rows_of(NVCOMP, "nvcomp", codec="nvcomp-lz4-chunked")[0]
    assert (as_values.ratio, as_codes.ratio) == (16.0, 64.0)
    assert as_values.encode_gbps == pytest.approx(5.5)
    assert as_codes.encode_gbps == pytest.approx(4 * 5.5)
    assert as_codes.num_values == 4 * as_values.num_values == 16 * MIB
    assert as_codes.key != as_values.key
    assert "1 for each float32" in as_codes.note


def test_a_log_that_tells_the_size_of_a_code_needs_no_help():
    assert rows_of(CUSZ, "cusz")[0].ratio == pytest.approx(4 * 2.42, rel=1e-3)
    assert rows_of(CUSZ_NEW, "cusz")[0].ratio == pytest.approx(2 * 4.0)
    with pytest.raises(SpecError, match="values of 1 bytes, not 4; leave --value-nbytes out"):
        rows_of(CUSZ, "cusz", value_nbytes=4)


def test_repeated_runs_of_one_input_become_one_row_with_their_spread():
    outputs = [GPULZ.replace("20 GB/s", f"{speed} GB/s") for speed in (10, 20, 40)]
    text = "".join(logged("gpulz -i a", output) for output in outputs) + logged("gpulz -i b", GPULZ)
    first, second = rows_of(text, "gpulz", input_nbytes=10 * MIB)
    assert (first.input, second.input) == ("a", "b")
    # 1, 0.5 and 0.25 ms
    assert first.encode_s.p50 == pytest.approx(0.5e-3)
    assert first.encode_s.p20 < first.encode_s.p50 < first.encode_s.p80
    assert second.encode_s.p20 == second.encode_s.p80


def test_rows_say_where_they_come_from_and_promise_nothing():
    row = rows_of(SZ3, "sz3", input_nbytes=80_000, machine="a laptop", version="3.3.2")[0]
    assert (row.suite, row.peer, row.device, row.input) == ("log", True, "cpu", "the.log")
    assert (row.worst_error, row.error_bound, row.bound_held) == (None, None, None)
    assert (row.machine, row.version) == ({"cpu": "a laptop"}, "3.3.2")
    assert "own clock" in row.note


@pytest.mark.parametrize(
    ("text", "name", "facts", "way_out"),
    [
        (GPULZ, "gpulz", {}, "--input-nbytes"),
        (NVCOMP, "nvcomp", {}, "--codec"),
        (NVCOMP, "nvcomp", {"codec": "x", "input_nbytes": 5}, "leave --input-nbytes out"),
        (NVCOMP, "nvcomp", {"codec": "x", "value_nbytes": 3}, "1, 2, 4 or 8"),
        (GPULZ, "gpulz", {"input_nbytes": 0}, "at least one byte"),
        (GPULZ, "gpulz", {"input_nbytes": 4097}, "which values of 4 bytes do not fill"),
    ],
)
def test_what_a_log_does_not_say_is_asked_for(text, name, facts, way_out):
    with pytest.raises(SpecError, match=way_out):
        rows_of(text, name, **facts)
