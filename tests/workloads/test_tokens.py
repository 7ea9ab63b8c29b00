"""Texts of every kind become tokens once, steps take the same ones on every machine, and errors say the way out."""

from __future__ import annotations

import gzip
import lzma
import math
import pickle
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tersor.errors import BackendUnavailableError, CorruptDataError, SpecError
from tersor.workloads.data import bpe, text, token_files
from tersor.workloads.data.synthetic_text import SyntheticText
from tersor.workloads.data.text_opening import open_text
from tersor.workloads.data.tokens import num_windows, training_starts, windows

SYNTHETIC_BEGIN = (
    b"trj wbqs qzgq hzq ywuwae is ji zss.\nkn ywuwae icc yyyzhy fios jc dbye wmfqy.\n"
    b"dbye jsoqgi bg lus trj kugacp ug fblz.\n"
)
TEXT = "".join(f"line {k} of a täxt, {k % 7} times\n" for k in range(400)).encode()


def quiet(what: str, done: int, total: int) -> None:
    """Show no bar."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_text_is_read_packed_or_not(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(text, "_BLOCK_NBYTES", 1000)
    path = tmp_path / "any"
    path.write_bytes(pack(TEXT))
    source = open_text(path, progress=quiet)
    train, last = source.tokens("train"), source.tokens("validation")
    assert bytes(train) + bytes(last) == TEXT
    # from the start of the first line in the last twentieth
    assert bytes(train).endswith(b"\n")
    assert len(TEXT) / 20 - 40 < len(last) <= len(TEXT) / 20


def test_a_second_file_is_the_validation(file, tmp_path):
    (tmp_path / "other").write_bytes(b"other words")
    source = open_text(file, validation=tmp_path / "other", progress=quiet)
    assert bytes(source.tokens("train")) == TEXT
    assert bytes(source.tokens("validation")) == b"other words"


def test_tokens_are_made_once_and_anew_for_another_text(file, monkeypatch):
    first = open_text(file, progress=quiet)
    with monkeypatch.context() as patch:
        patch.setattr(token_files, "_made", lambda *_: pytest.fail("made again"))
        again = open_text(file, progress=quiet)
    assert again == first
    file.write_bytes(TEXT.replace(b"line", b"LINE"))
    changed = open_text(file, progress=quiet)
    assert changed.name != first.name
    assert bytes(changed.tokens("train")).startswith(b"LINE 0")


def test_a_source_can_be_handed_to_other_processes(file):
    source = open_text(file, progress=quiet)
    sent = pickle.dumps(source)
    assert len(sent) < 2000
    assert bytes(pickle.loads(sent).tokens("train")) == bytes(source.tokens("train"))


def test_a_bpe_is_learned_from_the_training_text_and_gives_it_back(file, tmp_path):
    library = pytest.importorskip("tokenizers")
    (tmp_path / "other").write_bytes(b"zebra" * 200)
    options = {"tokenizer": "bpe", "vocabulary": 300, "progress": quiet}
    source = open_text(file, validation=tmp_path / "other", cache=tmp_path / "kept", **options)
    tokens = source.tokens("train")
    assert source.vocabulary == 300
    assert tokens.dtype == np.uint16
    assert len(tokens) < 0.5 * len(TEXT)
    learned = library.Tokenizer.from_file(str(source.folder / "bpe.json"))
    assert source.folder.parent == tmp_path / "kept"
    assert learned.decode(tokens.tolist()).encode() == TEXT
    assert "zebra" not in learned.get_vocab()


def test_the_end_of_a_text_is_one_token_of_a_bpe(file):
    pytest.importorskip("tokenizers")
    file.write_bytes((TEXT + b"<|endoftext|>") * 3)
    source = open_text(file, validation=file, tokenizer="bpe", vocabulary=280, progress=quiet)
    assert source.tokens("train").tolist().count(0) == 3


def test_without_the_package_a_bpe_says_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    before = sorted(file.parent.iterdir())
    with pytest.raises(BackendUnavailableError, match=r"tersor\[train\], or .* --tokenizer bytes"):
        open_text(file, tokenizer="bpe", progress=quiet)
    assert sorted(file.parent.iterdir()) == before


@pytest.mark.parametrize("vocabulary", [256, 257, 1 << 16, (1 << 16) + 1])
def test_tokens_are_as_wide_as_the_vocabulary_needs(vocabulary):
    assert np.iinfo(token_files._dtype(vocabulary)).max >= vocabulary - 1


def test_a_name_is_looked_up_where_the_environment_says(file, monkeypatch, tmp_path):
    monkeypatch.setenv("TERSOR_DATA", str(tmp_path / "data"))
    (tmp_path / "data/text").mkdir(parents=True)
    (tmp_path / "data/text/tale.txt.xz").write_bytes(lzma.compress(TEXT))
    source = open_text("tale", cache=tmp_path, progress=quiet)
    assert source.name.startswith("tale.txt.xz, bytes, ")
    with pytest.raises(
        SpecError, match="there is no file poem or in the folder text of TERSOR_DATA"
    ):
        open_text("poem")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "has no text for train"),
        (b"short", "has no text for validation"),
        (gzip.compress(TEXT)[:-30], "is a damaged or truncated file; fetch it again"),
        (lzma.compress(TEXT)[:-30], "is a damaged or truncated file; fetch it again"),
    ],
)
def test_a_refused_text_leaves_nothing_behind(tmp_path, data, words):
    (tmp_path / "text").write_bytes(data)
    with pytest.raises((SpecError, CorruptDataError), match=words):
        open_text(tmp_path / "text", progress=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokenizer": "words"}, "one of bytes, bpe, not 'words'"),
        ({"tokenizer": "bpe", "vocabulary": 100}, "at least 257 tokens, not 100"),
    ],
)
def test_a_tokenizer_that_cannot_be_is_refused(file, options, words):
    with pytest.raises(SpecError, match=words):
        open_text(file, **options)


@pytest.mark.parametrize("damage", ["short", "gone", "manifest"])
def test_damaged_tokens_are_noticed(file, damage):
    folder = open_text(file, progress=quiet).folder
    if damage == "short":
        (folder / "train.tokens").write_bytes(b"x")
    elif damage == "gone":
        (folder / "train.tokens").unlink()
    else:
        (folder / "tokens.json").write_bytes(b"{}")
    with pytest.raises(CorruptDataError, match="delete"):
        open_text(file, progress=quiet).tokens("train")


def test_sequences_of_a_step_depend_on_their_numbers_alone():
    starts = training_starts(500, 10, seed=1, first=0, count=5000)
    assert (starts[100:104] == training_starts(500, 10, 1, 100, 4)).all()
    assert starts.min() == 0
    assert starts.max() == 490
    assert (starts != training_starts(500, 10, 2, 0, 5000)).any()
    source = SyntheticText(num_train=50, num_validation=5)
    found = windows(source, "train", np.array([3, 40]), 10)
    assert bytes(found[1].tolist()) == bytes(source.tokens("train"))[40:50]


def test_validation_windows_judge_every_token_once_but_the_first():
    assert num_windows(1 + 7 * 10, 11) == 7
    with pytest.raises(SpecError, match="10 tokens, and a sequence takes 11; give a longer"):
        num_windows(10, 11)


def test_the_synthetic_text_is_the_same_everywhere():
    made = bytes(SyntheticText(num_train=3, seed=5).tokens("train"))
    assert made == SYNTHETIC_BEGIN
    assert made != bytes(SyntheticText(num_train=3, seed=6).tokens("train"))


def test_the_best_loss_of_the_synthetic_text_is_that_of_its_choices():
    source = SyntheticText(num_train=4000, num_validation=500)
    sentences = bytes(source.tokens("train")).decode().split(".\n")[:-1]
    words = [sentence.split() for sentence in sentences]
    pairs = {pair for one in words for pair in pairwise(one)}
    assert {len(one) for one in words} == {8}
    assert len({one[0] for one in words}) == 64
    assert len(pairs) == 64 * 4
    nats = 500 * (math.log(64) + 7 * math.log(4))
    assert source.best_loss() == pytest.approx(nats / len(source.tokens("validation")))


def test_bytes_that_are_no_text_are_replaced_for_a_bpe_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_BLOCK_NBYTES", 3)
    (tmp_path / "text").write_bytes("ää".encode() + b"\xff")
    part = text.TextPart(tmp_path / "text")
    assert "".join(part.strings()) == "ää�"
    assert b"".join(block.tobytes() for block in bpe.ByteTokenizer().encoded(part)).endswith(
        b"\xff"
    )
