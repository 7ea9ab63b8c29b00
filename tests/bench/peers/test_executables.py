"""Programs on PATH are run and read; shell scripts stand in for them."""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest

from tersor.bench.core.inputs import make_input
from tersor.bench.core.subject import Subject
from tersor.bench.kernels.programs import ProgramsConfig, run_programs
from tersor.bench.peers.executables import EXECUTABLES, executables_of, find_executables
from tersor.bench.report.measured import comparable
from tersor.errors import BackendUnavailableError, SpecError
from tests.bench.core.test_rows import make_row
from tests.processes import assert_ended

# each says what its real counterpart would of a file that shrinks to a quarter
SCRIPTS = {
    "benchmark_lz4_chunked": """
n=$(wc -c < "$2"); q=$((n / 4))
printf 'files: 1\\nuncompressed (B): %d\\n' "$n"
printf 'comp_size: %d, compressed ratio: 4.0000\\n' "$q"
printf 'compression throughput (GB/s): 8.0\\ndecompression throughput (GB/s): 16.0\\n'
""",
    "gpulz": """
printf 'compression ratio: 4\\ncompression e2e throughput: 8 GB/s\\n'
printf 'decompression e2e throughput: 16 GB/s\\n'
""",
    "bin_hf": """
[ "$6" = u1 ] || { echo "no type"; exit 1; }
printf '[psz::info::res::comp_hf_encode] shortest time (ms): 0.5\\thighest throughput (GiB/s): 1\\n'
printf 'Huffman in  len:\\t%d\\nHuffman out len:\\t%d\\n' "$2" $(($2 / 4))
printf '"Huffman CR = sizeof(E) * len / outlen", where outlen is byte count:\\t4.00\\n'
printf '[psz::info::res::decomp_hf_decode] shortest time (ms): 0.25\\thighest throughput (GiB/s): 1\\n'
printf '>>>>  IDENTICAL.\\n'
""",
    # stores the floats as they are; -i FILE -z FILE -o FILE after -f
    "sz3": """
[ "$1" = -v ] && { echo 'SZ3 Version: 9.9'; exit 0; }
cp "$3" "$5"; cp "$5" "$7"
printf 'compression ratio = 1.00 \\ncompression time = 0.5\\ncompressed data file = %s\\n' "$5"
printf 'compression ratio = 1.000000\\ndecompression time = 0.25 seconds.\\n'
""",
}


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Return a function that puts a script on an otherwise bare PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    system = shutil.which("sh").rpartition("/")[0]
    monkeypatch.setenv("PATH", f"{folder}:{system}")

    def add(name, body):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}")
        path.chmod(0o755)

    return add


@pytest.fixture
def subject():
    return Subject.of(make_input("gradients", 2**16), 0.03)


def found(name):
    (program,), absent = find_executables([name])
    assert absent == []
    return program


@pytest.mark.parametrize(
    ("name", "encode_s"),
    [
        ("nvcomp-lz4-chunked", 2**14 / 8e9),
        ("gpulz", 2**14 / (8 * 2**20) * 1e-3),
        ("cusz-hf", 0.5e-3),
    ],
)
def test_codes_are_given_as_a_file_and_the_program_s_figures_come_back(
    name, encode_s, on_path, subject
):
    program = EXECUTABLES[name][1]
    on_path(program, SCRIPTS[program])
    measured = found(name).measure(subject, rounds=2, timeout_s=60)
    # 2**16 bytes of float32 are 2**14 codes of one byte
    assert measured.encoded_nbytes == 2**12
    assert measured.encode_s.p50 == pytest.approx(encode_s)
    assert measured.decode_s.p50 == pytest.approx(encode_s / 2)
    assert measured.worst_error is None


def test_sz3_s_result_is_checked_here_and_its_size_is_that_of_its_file(on_path):
    on_path("sz3", SCRIPTS["sz3"])
    program = found("sz3-cli")
    assert program.version == "9.9"
    slices = make_input("embeddings", 2**20)
    subject = Subject.of(slices, 0.03)
    measured = program.measure(subject, rounds=1, timeout_s=60)
    assert measured.encoded_nbytes == 2**20
    assert measured.worst_error == 0.0
    assert measured.error_bound in subject.error_bounds
    # the script says half a second for each slice
    assert measured.encode_s.p50 == pytest.approx(0.5 * len(subject.slices))


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ('cp "$5" "$7"; printf aaaa >> "$7"', "sz3 decoded 65540 bytes where it was given 65536"),
        ('tr "\\000-\\377" "\\377" < "$5" > "$7"', "sz3 decoded values that are not finite"),
        ("true", "sz3 ended well without writing its files"),
        ('rm "$5"', "sz3 ended well without writing its files"),
    ],
)
def test_sz3_that_decodes_something_else_or_nothing_is_one_sentence(
    instead, words, on_path, subject
):
    on_path("sz3", SCRIPTS["sz3"].replace('cp "$5" "$7"', instead))
    with pytest.raises(BackendUnavailableError, match=words):
        found("sz3-cli").measure(subject, rounds=1, timeout_s=60)


def test_what_sz3_left_of_an_earlier_slice_is_no_result_of_the_next(on_path, tmp_path):
    mark = tmp_path / "ran"
    body = SCRIPTS["sz3"].replace(
        'cp "$3" "$5"; cp "$5" "$7"',
        f"""
if [ ! -e {mark} ]; then cp "$3" "$5"; cp "$5" "$7"; fi; : > {mark}
""",
    )
    on_path("sz3", body)
    several = Subject.of(make_input("embeddings", 2**20), 0.03)
    with pytest.raises(BackendUnavailableError, match="without writing"):
        found("sz3-cli").measure(several, rounds=1, timeout_s=60)


def test_only_programs_that_start_from_floats_have_the_time_of_a_copy(on_path, subject):
    on_path("sz3", SCRIPTS["sz3"])
    on_path("gpulz", SCRIPTS["gpulz"])
    floats, codes = (
        found(name).measure(subject, rounds=2, timeout_s=60) for name in ("sz3-cli", "gpulz")
    )
    assert floats.memcpy_s.p50 > 0
    assert codes.memcpy_s is None


def test_a_program_that_does_not_end_is_stopped_with_its_children(on_path, subject, tmp_path):
    on_path("gpulz", f"sleep 600 & echo $! > {tmp_path}/child; sleep 600\n")
    with pytest.raises(BackendUnavailableError, match="gpulz was stopped after 3 s"):
        found("gpulz").measure(subject, rounds=1, timeout_s=3)
    assert_ended([int((tmp_path / "child").read_text())])


def test_what_a_program_leaves_running_ends_with_it(on_path, subject, tmp_path):
    on_path("gpulz", SCRIPTS["gpulz"] + f"sleep 600 & echo $! > {tmp_path}/child; exit 0\n")
    found("gpulz").measure(subject, rounds=1, timeout_s=60)
    assert_ended([int((tmp_path / "child").read_text())])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'no device' >&2; exit 3\n", "gpulz ended with exit code 3 after saying 'no device'"),
        ("exit 1\n", "gpulz ended with exit code 1"),
        (
            "echo hello\n",
            "no line of the output of gpulz, .* is from gpulz, .*; its version may print other lines",
        ),
        (SCRIPTS["gpulz"] * 2, "gpulz reports 2 runs"),
        ("printf 'compression ratio: 4\\n'\n", "has no line like"),
        (SCRIPTS["gpulz"] + "echo 'verification failed!!! Index 1 is wrong'\n", "failed"),
        ("kill -9 $$\n", "exit code -9"),
    ],
)
def test_a_program_that_fails_is_one_sentence(body, words, on_path, subject):
    on_path("gpulz", body)
    with pytest.raises(BackendUnavailableError, match=words) as caught:
        found("gpulz").measure(subject, rounds=1, timeout_s=60)
    assert "\n" not in str(caught.value)


def test_a_program_that_reads_another_size_is_refused(on_path, subject):
    on_path("bin_hf", SCRIPTS["bin_hf"].replace('"$2" $(($2', '"$((4 * $2))" $((4 * $2'))
    with pytest.raises(
        BackendUnavailableError, match="counts 65536 bytes where it was given 16384"
    ):
        found("cusz-hf").measure(subject, rounds=1, timeout_s=60)


def test_a_file_that_cannot_be_started_is_one_sentence(on_path, subject, tmp_path):
    on_path("gpulz", "")
    (tmp_path / "bin" / "gpulz").write_bytes(b"\x00\x01\x02 not a program")
    with pytest.raises(BackendUnavailableError, match="gpulz does not start"):
        found("gpulz").measure(subject, rounds=1, timeout_s=60)


def test_no_file_is_left_behind(on_path, subject, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    for body in (SCRIPTS["gpulz"], "exit 1\n"):
        on_path("gpulz", body)
        with suppress(BackendUnavailableError):
            found("gpulz").measure(subject, rounds=1, timeout_s=60)
        assert list(folder.iterdir()) == []


def test_missing_programs_are_one_line_together(on_path):
    programs, absent = find_executables(tuple(EXECUTABLES))
    assert programs == []
    (sentence,) = absent
    assert sentence.startswith("left out: not on PATH: sz3, benchmark_lz4_chunked")
    with pytest.raises(SpecError, match="not 'sz4'"):
        find_executables(["sz4"])


def test_every_program_belongs_to_one_device():
    assert executables_of("cpu") == ("sz3-cli",)
    assert set(executables_of("cpu") + executables_of("cuda")) == set(EXECUTABLES)


def test_rows_are_added_to_those_of_the_kernels_suite_and_are_not_measured_twice(on_path):
    on_path("sz3", SCRIPTS["sz3"])
    config = ProgramsConfig(inputs=("gradients",), bounds=(0.01, 0.03)).smoke()
    outcome = run_programs(config)
    assert [row.relative_bound for row in outcome.rows] == [0.01, 0.03]
    row = outcome.rows[0]
    assert (row.suite, row.codec, row.version, row.peer) == ("kernels", "sz3-cli", "9.9", True)
    assert (row.ratio, row.worst_error) == (1.0, 0.0)
    assert row.bound_held
    # which says that it started from floats: figures show it
    assert comparable([row, make_row()])[0] is row
    again = run_programs(config, done=frozenset(row.key for row in outcome.rows))
    assert (again.rows, again.notes) == ([], [])
    # what a file has already is no failure
    assert (again.num_known, again.is_empty) == (2, False)


def test_a_program_that_fails_on_an_input_is_a_note_and_the_others_go_on(
    on_path, tmp_path, monkeypatch
):
    # only an argument of its own tells the four dimensions, not a folder whose name has "-4" in it
    folder = tmp_path / "temporary-4"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    on_path(
        "sz3", SCRIPTS["sz3"].replace('cp "$3"', 'case " $* " in *" -4 "*) exit 7;; esac; cp "$3"')
    )
    outcome = run_programs(
        ProgramsConfig(inputs=("activations", "gradients"), bounds=(0.01,)).smoke()
    )
    assert [row.input for row in outcome.rows] == ["gradients"]
    (sentence,) = outcome.notes
    assert sentence.startswith(
        "left out: sz3-cli on activations, 1 MiB, relative bound 0.01: sz3 ended"
    )


def test_an_outcome_tells_programs_that_are_missing_from_programs_that_fail(on_path):
    config = ProgramsConfig(inputs=("gradients",), bounds=(0.01,)).smoke()
    missing = run_programs(config)
    assert (missing.is_empty, missing.num_on_path) == (True, 0)
    on_path("sz3", "exit 1\n")
    # it fails when it is asked for its version, before any input
    broken = run_programs(config)
    assert (broken.is_empty, broken.num_on_path) == (True, 1)
    on_path("sz3", SCRIPTS["sz3"].replace('cp "$3" "$5"', "exit 7"))
    failing = run_programs(config)
    assert (failing.is_empty, failing.num_on_path) == (True, 1)
    assert len(failing.notes) == 1


@pytest.mark.parametrize("change", [{"rounds": 0}, {"timeout_s": 0.0}, {"timeout_s": float("nan")}])
def test_an_impossible_plan_is_refused(change):
    with pytest.raises(SpecError):
        ProgramsConfig(**change)


def test_a_device_is_a_kind_and_no_number():
    with pytest.raises(SpecError, match="cpu or cuda, not 'cuda:0'"):
        ProgramsConfig(device="cuda:0")


def test_a_program_of_the_other_device_is_refused():
    with pytest.raises(SpecError, match="programs on cpu are sz3-cli, not 'gpulz'"):
        run_programs(ProgramsConfig(programs=("gpulz",)))


def test_the_real_sz3_keeps_its_bound():
    if shutil.which("sz3") is None:
        pytest.skip("sz3 is not on PATH")
    config = ProgramsConfig(programs=("sz3-cli",), inputs=("field",), bounds=(0.01,)).smoke()
    (row,) = run_programs(config).rows
    assert row.bound_held
    assert row.ratio > 4
