from __future__ import annotations

import pytest
from msgspec import structs
from rich.console import Console

from tersor.bench.core.blocks import Estimate, Memory, Quality
from tersor.bench.core.compare import NOISE_PERCENT, TimeChange, compare_rows
from tersor.bench.core.compare_tables import (
    comparison_sentence,
    comparison_table,
    comparison_values,
    unmatched_sentences,
)
from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.timing import Percentiles
from tersor.errors import SpecError
from tests.bench.core.test_rows import make_row


def times(middle, spread=0.05):
    return Percentiles(middle * (1 - spread), middle, middle * (1 + spread))


def steady_row(**changes):
    """A row whose times have a spread of 5 % to each side."""
    steady = {"encode_s": times(1e-3), "decode_s": times(2e-3), "memcpy_s": times(1e-4)}
    return make_row(**{**steady, **changes})


def accuracy(mean, half_width):
    return Quality(accuracy=Estimate(mean=mean, half_width=half_width, num_runs=5))


def rendered(table):
    console = Console(width=300)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def verdicts(comparison):
    return {change.name: change.verdict for change in comparison.pairs[0].times}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (times(1.0), times(1.5), "slower"),
        (times(1.5), times(1.0), "faster"),
        # the medians are 50 % apart, but a fifth of the first rounds were as slow as that
        (Percentiles(0.9, 1.0, 1.5), times(1.5), "same"),
        # the intervals do not meet, but 4 % is not worth a word
        (times(1.0, 0.01), times(1.04, 0.01), "same"),
        (times(1.0, 0.01), times(1.06, 0.01), "slower"),
        (times(1.0), times(1.0), "same"),
    ],
)
def test_a_time_has_changed_only_where_noise_cannot_explain_it(before, after, verdict):
    assert TimeChange("encode", before, after, NOISE_PERCENT).verdict == verdict


def test_intervals_that_touch_overlap():
    touching = TimeChange("encode", Percentiles(1, 2, 3), Percentiles(3, 4, 5), 0)
    assert touching.overlap
    assert touching.verdict == "same"
    assert not TimeChange("encode", Percentiles(1, 2, 3), Percentiles(3.1, 4, 5), 0).overlap


def test_rows_of_two_builds_are_the_same_measurement_and_other_threads_are_not():
    before = [steady_row(version="1", git_commit="aaa"), steady_row(codec="rows")]
    after = [steady_row(version="2", git_commit="bbb"), steady_row(threads=2)]
    comparison = compare_rows(before, after)
    assert len(comparison.pairs) == 1
    assert comparison.pairs[0].after.version == "2"
    assert [row.codec for row in comparison.only_before] == ["rows"]
    assert [row.threads for row in comparison.only_after] == [2]
    assert comparison.warnings == [
        "numbers of threads are 1 in A and 1, 2 in B; only equal numbers are compared"
    ]
    assert unmatched_sentences(comparison, ("a", "b")) == [
        "only in a: kernels rows",
        "only in b: kernels flat",
    ]


def test_one_byte_and_the_last_digit_of_an_error_count():
    after = steady_row(encoded_nbytes=501, worst_error=0.25000000000000006)
    pair = compare_rows([steady_row()], [after]).pairs[0]
    assert (pair.size, pair.error) == ("larger", "larger")
    same = compare_rows([steady_row()], [steady_row()]).pairs[0]
    assert (same.size, same.error, same.changed) == ("same", "same", False)


def test_a_bound_that_no_longer_holds_comes_first_and_gains_come_last():
    codecs = ("broken", "slower", "much-slower", "larger", "faster", "smaller", "same")
    before = [steady_row(codec=codec) for codec in reversed(codecs)]
    changes = {
        "broken": {"worst_error": 0.6},
        "slower": {"encode_s": times(2e-3)},
        "much-slower": {"decode_s": times(9e-3)},
        "larger": {"encoded_nbytes": 600},
        "faster": {"encode_s": times(1e-4)},
        "smaller": {"encoded_nbytes": 400},
        "same": {},
    }
    after = [steady_row(codec=codec, **change) for codec, change in changes.items()]
    comparison = compare_rows(before, after)
    found = [pair.before.codec for pair in comparison.pairs]
    assert found == ["broken", "much-slower", "slower", "larger", "faster", "smaller", "same"]
    assert comparison.pairs[0].error == "bound broken"
    assert "times: 2 slower, 1 faster, 11 the same" in comparison_sentence(comparison)
    assert "; bounds newly broken: 1" in comparison_sentence(comparison)


def test_only_what_is_slower_beyond_noise_and_the_limit_fails():
    after = [steady_row(encode_s=times(1.3e-3), decode_s=Percentiles(1e-3, 3e-3, 4e-3))]
    comparison = compare_rows([steady_row()], after)
    assert verdicts(comparison) == {"encode": "slower", "decode": "same"}
    assert [change.name for _, change in comparison.slower_than(20)] == ["encode"]
    assert comparison.slower_than(31) == []


def test_dividing_by_the_copy_takes_a_slower_machine_out():
    slow = {"encode_s": times(2e-3), "decode_s": times(4e-3), "memcpy_s": times(2e-4)}
    plain = compare_rows([steady_row()], [steady_row(**slow)])
    assert verdicts(plain) == {"encode": "slower", "decode": "slower"}
    assert "2.00 times as long" in plain.warnings[0]
    divided = compare_rows([steady_row()], [steady_row(**slow)], per_copy=True)
    assert verdicts(divided) == {"encode": "same", "decode": "same"}
    assert not divided.warnings


def test_dividing_by_the_copy_keeps_what_the_machine_does_not_explain():
    slow = {"encode_s": times(8e-3), "memcpy_s": times(2e-4)}
    comparison = compare_rows([steady_row()], [steady_row(**slow)], per_copy=True)
    assert verdicts(comparison)["encode"] == "slower"


@pytest.mark.parametrize("copies", [(None, times(1e-4)), (times(1e-4), None), (None, None)])
def test_rows_without_a_copy_are_not_judged_by_time_per_copy(copies):
    with_copy = steady_row(codec="rows")
    lone = [steady_row(memcpy_s=copy) for copy in copies]
    after = [structs.replace(lone[1], encode_s=times(2e-3), encoded_nbytes=600), with_copy]
    comparison = compare_rows([lone[0], with_copy], after, per_copy=True)
    left, judged = comparison.pairs
    assert (left.before.codec, left.times, left.size) == ("flat", (), "larger")
    assert [change.verdict for change in judged.times] == ["same", "same"]
    assert comparison.warnings == ["no copy to divide by, so that times are left out: 1 of 2 pairs"]
    assert "times: 0 slower, 0 faster, 2 the same" in comparison_sentence(comparison)
    # without --per-copy seconds are compared, and nothing is left out
    assert compare_rows([lone[0]], after[:1]).count("slower") == 1


def test_dividing_by_copies_that_no_row_has_is_refused():
    lone = steady_row(memcpy_s=None)
    with pytest.raises(SpecError, match="has a copy to divide by; leave out --per-copy"):
        compare_rows([lone], [lone], per_copy=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": {"cpu": "other", "cores": 8}}, "from some, 2 cores, B from other, 8 cores"),
        ({"machine": {"cpu": "some", "cores": 2, "gpu": "H200"}}, "B from H200"),
        ({"machine": {}}, "an unknown machine"),
        ({"entropy_bits": 2.5}, "measured on other data of the same name: 1 of 1 pairs"),
        (
            {"encode_s": Percentiles(1e-3, 1e-3, 1e-3)},
            "times that are single figures, whose noise is unknown: 1",
        ),
    ],
)
def test_what_makes_a_comparison_doubtful_is_one_sentence(change, words):
    before = steady_row(entropy_bits=3.0)
    comparison = compare_rows([before], [structs.replace(before, **change)])
    assert len(comparison.warnings) == 1
    assert words in comparison.warnings[0]


def test_the_last_of_several_answers_counts_and_that_is_said():
    before = [steady_row(git_commit="old", encoded_nbytes=999), steady_row(git_commit="new")]
    comparison = compare_rows(before, [steady_row()])
    assert comparison.pairs[0].before.git_commit == "new"
    assert "rows of A that a later one replaces: 1" in comparison.warnings[0]


def test_whole_exchanges_and_steps_are_compared_too():
    def row(step):
        exchange = ExchangeTimes(
            direction="forward", network="namespaces", link="1gbit", num_ranks=2, batch=64,
            sizes_s=times(1e-3), payload_s=times(1e-3), exchange_s=times(1e-2), step_s=times(step),
        )  # fmt: skip
        return steady_row(suite="embeddings", group="forward", exchange=exchange)

    comparison = compare_rows([row(0.1)], [row(0.2)])
    assert verdicts(comparison) == {
        "encode": "same", "decode": "same", "exchange": "same", "step": "slower",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "verdicts"),
    [
        (Quality(psnr_db=40.0, ssim=0.9), Quality(psnr_db=39.9, ssim=0.91), ["worse", "better"]),
        (Quality(loss=Estimate(mean=2.0)), Quality(loss=Estimate(mean=1.9)), ["better"]),
        # seeds differ by more than the change of their mean
        (accuracy(0.80, 0.01), accuracy(0.81, 0.01), ["same"]),
        (accuracy(0.80, 0.01), accuracy(0.77, 0.01), ["worse"]),
        # one run alone has no interval, so that the figures decide
        (accuracy(0.80, None), accuracy(0.801, 0.01), ["better"]),
        (Memory(held_nbytes=1000, peak_nbytes=2000), Memory(peak_nbytes=2100), ["same"]),
        (Memory(held_nbytes=1000), Memory(held_nbytes=1051), ["worse"]),
    ],
)
def test_quality_and_memory_have_changed_only_where_noise_cannot_explain_it(
    before, after, verdicts
):
    block = type(before).__name__.lower()
    comparison = compare_rows([steady_row(**{block: before})], [steady_row(**{block: after})])
    pair = comparison.pairs[0]
    assert [change.verdict for change in pair.figures] == verdicts
    assert pair.changed == (set(verdicts) != {"same"})
    worse, better = (verdicts.count(verdict) for verdict in ("worse", "better"))
    assert comparison_sentence(comparison).endswith(
        f"; quality and memory: {worse} worse, {better} better"
    )


def test_a_worse_figure_comes_before_gains_and_is_shown_in_table_and_values():
    lost = {"quality": Quality(psnr_db=40.0), "memory": Memory(peak_nbytes=2**20)}
    before = [steady_row(codec="faster"), steady_row(codec="worse", **lost)]
    lost = {"quality": Quality(psnr_db=30.0), "memory": Memory(peak_nbytes=2**20)}
    after = [steady_row(codec="faster", encode_s=times(1e-4)), steady_row(codec="worse", **lost)]
    comparison = compare_rows(before, after)
    assert [pair.before.codec for pair in comparison.pairs] == ["worse", "faster"]
    shown = rendered(comparison_table(comparison, ("a", "b")))
    assert "PSNR dB" in shown
    assert "40 to 30, worse" in shown
    assert "SSIM" not in shown
    figures = comparison_values(comparison)["pairs"][0]["figures"]
    assert figures["psnr_db"]["verdict"] == "worse"
    assert figures["peak_nbytes"]["after"]["mean"] == 2**20


def test_rows_without_quality_and_memory_are_compared_without_a_word_of_them():
    comparison = compare_rows([steady_row()], [steady_row(quality=Quality(psnr_db=40.0))])
    assert comparison.pairs[0].figures == ()
    assert "quality" not in comparison_sentence(comparison)


def test_files_without_a_common_measurement_are_refused():
    with pytest.raises(SpecError, match=r"a\.jsonl and b\.jsonl have no measurement in common"):
        compare_rows([steady_row()], [steady_row(codec="x")], names=("a.jsonl", "b.jsonl"))


@pytest.mark.parametrize("noise", [-1.0, float("nan")])
def test_a_margin_below_zero_is_refused(noise):
    with pytest.raises(SpecError, match="from 0 on"):
        compare_rows([steady_row()], [steady_row()], noise_percent=noise)


def test_values_hold_what_the_table_shows():
    comparison = compare_rows([steady_row()], [steady_row(encode_s=times(2e-3), version="2")])
    values = comparison_values(comparison)["pairs"][0]
    assert values["times"]["encode"]["verdict"] == "slower"
    assert values["times"]["encode"]["speed"] == pytest.approx(0.5)
    assert values["times"]["encode"]["intervals_overlap"] is False
    assert values["ratio"] == {"before": 8.0, "after": 8.0}
    assert values["versions"] == {"before": "1", "after": "2"}
