"""Parser of Criteo's click logs, whose lines are a label, 13 integers and 26 hexadecimal values.

Fields are tab-separated. Whole blocks are parsed by arithmetic on eight characters at a time. Lines that
this does not support are parsed individually: they have a number of more than eight digits, or are
malformed and raise an error that names the line.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tersor.errors import CorruptDataError
from tersor.workloads.data.clicks import NUM_DENSE, NUM_TABLES
from tersor.workloads.data.samples import MISSING, Samples

NUM_FIELDS: Final = 1 + NUM_DENSE + NUM_TABLES
_TAB, _NEWLINE, _RETURN, _MINUS = 0x09, 0x0A, 0x0D, 0x2D
_WORD: Final = 8
_INVALID: Final = 0xFF

_U64: TypeAlias = npt.NDArray[np.uint64]
_I64: TypeAlias = npt.NDArray[np.int64]
_BOOL: TypeAlias = npt.NDArray[np.bool_]

_INTEGER: Final = re.compile(rb"-?[0-9]{1,10}")
_HEXADECIMAL: Final = re.compile(rb"[0-9a-fA-F]{1,8}")


def _digit_values(digits: bytes) -> bytes:
    """Return the table of digit values for ``bytes.translate``."""
    return bytes(
        digits.index(lower) if (lower := bytes([code]).lower()) in digits else _INVALID
        for code in range(256)
    )


_DECIMAL_VALUES: Final = _digit_values(b"0123456789")
_HEX_VALUES: Final = _digit_values(b"0123456789abcdef")
# masks, by the length of a field, of its characters among the eight that end where it ends
_OWN: Final = np.array(
    [(2**64 - 1) << 8 * (_WORD - length) & (2**64 - 1) for length in range(_WORD + 1)], np.uint64
)
_ZEROS: Final = ~_OWN & np.uint64(0x3030303030303030)


def parse_lines(block: bytes, first_line: int, name: str) -> Samples:
    """Parse whole lines, each terminated by a newline.

    Args:
        block: the lines.
        first_line: number of the first one in its file, from 1, for errors.
        name: of the file, for errors.

    Raises:
        CorruptDataError: a line is malformed; the message names the file, the line and the fault.
    """
    if not block:
        return Samples.empty(0)
    # eight bytes of padding in front, because a word of eight bytes is read up to the end of any field
    text = np.frombuffer(bytes(_WORD) + block, np.uint8)
    ends = _field_ends(text, first_line, name)
    starts = np.concatenate([[_WORD], ends.ravel()[:-1] + 1]).reshape(ends.shape)
    ends[:, -1] -= text[ends[:, -1] - 1] == _RETURN
    num_label, end_of_dense = 1, 1 + NUM_DENSE
    dense, odd = _integers(text, starts[:, num_label:end_of_dense], ends[:, num_label:end_of_dense])
    values, odd_values = _values(text, starts[:, end_of_dense:], ends[:, end_of_dense:])
    labels = text[starts[:, 0]] - np.uint8(ord("0"))
    odd |= odd_values | (labels > 1) | (ends[:, 0] - starts[:, 0] != 1)
    samples = Samples(labels, dense, values)
    for row in np.flatnonzero(odd):
        line = text[starts[row, 0] : ends[row, -1]].tobytes()
        try:
            samples.labels[row], samples.dense[row], samples.categories[row] = _parse_alone(line)
        except ValueError as error:
            raise CorruptDataError(f"{name}, line {first_line + row}: {error}") from error
    return samples


def _field_ends(text: npt.NDArray[np.uint8], first_line: int, name: str) -> _I64:
    """Return the end offset of each field, [lines, fields]."""
    # tab and newline are adjacent codes; smaller codes wrap around in unsigned arithmetic
    ends = np.flatnonzero(text - np.uint8(_TAB) <= _NEWLINE - _TAB)
    lines = np.flatnonzero(text[ends] == _NEWLINE)
    num_fields = np.diff(lines, prepend=-1)
    wrong = np.flatnonzero(num_fields != NUM_FIELDS)
    if len(wrong):
        found = int(num_fields[wrong[0]])
        hint = ""
        if found == NUM_FIELDS - 1:
            hint = "; a test file without labels cannot be used"
        elif first_line + wrong[0] == 1:
            # probably not a click log at all
            hint = "; name a click log as docs/data.md describes, or 'synthetic'"
        raise CorruptDataError(
            f"{name}, line {first_line + wrong[0]}: {found} fields separated by tabs, not the "
            f"{NUM_FIELDS} of a label, {NUM_DENSE} integers and {NUM_TABLES} categories{hint}"
        )
    return ends.reshape(-1, NUM_FIELDS)


def _words(text: npt.NDArray[np.uint8], ends: _I64, lengths: _I64) -> _U64:
    """Return the last eight characters of each field; shorter fields are padded with ``0`` in front."""
    every = np.ndarray(len(text) - _WORD + 1, "<u8", text, strides=(1,))
    words: _U64 = every[ends - _WORD]
    clipped = lengths.clip(0, _WORD)
    words &= _OWN[clipped]
    words |= _ZEROS[clipped]
    return words


def _digits(words: _U64, values: bytes) -> tuple[_U64, _BOOL]:
    """Return the digit values of the characters, and which lines contain an invalid digit."""
    digits = np.frombuffer(words.tobytes().translate(values), np.uint8).reshape(len(words), -1)
    invalid: _BOOL = (digits == _INVALID).any(1)
    return digits.view("<u8"), invalid


def _number(digits: _U64, radix: int) -> _U64:
    """Combine eight digit values, most significant in the lowest byte, into a number.

    Example:
        >>> int(_number(np.array([0x08_07_06_05_04_03_02_01], np.uint64), 10)[0])
        12345678
    """
    pairs = digits * np.uint64(radix) + (digits >> np.uint64(8))
    pairs &= np.uint64(0x00FF00FF00FF00FF)
    fours = pairs * np.uint64(radix**2) + (pairs >> np.uint64(16))
    fours &= np.uint64(0x0000FFFF0000FFFF)
    eights: _U64 = fours * np.uint64(radix**4) + (fours >> np.uint64(32))
    return eights & np.uint64(0xFFFFFFFF)


def _integers(
    text: npt.NDArray[np.uint8], starts: _I64, ends: _I64
) -> tuple[npt.NDArray[np.int32], _BOOL]:
    """Return decimal fields, and which lines must be parsed individually."""
    negative = text[starts] == _MINUS
    lengths = ends - starts
    num_digits = lengths - negative
    digits, odd = _digits(_words(text, ends, num_digits), _DECIMAL_VALUES)
    numbers = _number(digits, 10).astype(np.int32)
    np.negative(numbers, out=numbers, where=negative)
    numbers[lengths == 0] = MISSING
    return numbers, odd | ((num_digits > _WORD) | (negative & (num_digits == 0))).any(1)


def _values(
    text: npt.NDArray[np.uint8], starts: _I64, ends: _I64
) -> tuple[npt.NDArray[np.uint32], _BOOL]:
    """Return hexadecimal fields, and which lines must be parsed individually."""
    lengths = ends - starts
    digits, odd = _digits(_words(text, ends, lengths), _HEX_VALUES)
    return _number(digits, 16).astype(np.uint32), odd | (lengths > _WORD).any(1)


def _parse_alone(line: bytes) -> tuple[int, list[int], list[int]]:
    """Parse one line of 40 fields.

    Raises:
        ValueError: a field is malformed; the message names it.
    """
    label, *rest = line.split(b"\t")
    if label not in (b"0", b"1"):
        raise ValueError(f"the label is {_shown(label)}, not 0 or 1")
    dense = []
    for number, field in enumerate(rest[:NUM_DENSE], 1):
        if field and not _INTEGER.fullmatch(field):
            raise ValueError(f"integer feature {number} is {_shown(field)}")
        value = int(field) if field else MISSING
        if field and not MISSING < value < -MISSING:
            raise ValueError(f"integer feature {number} is {_shown(field)}, beyond 32 bits")
        dense.append(value)
    for number, field in enumerate(rest[NUM_DENSE:], 1):
        if field and not _HEXADECIMAL.fullmatch(field):
            raise ValueError(
                f"category {number} is {_shown(field)}, not up to eight hexadecimal digits"
            )
    return int(label), dense, [int(field, 16) if field else 0 for field in rest[NUM_DENSE:]]


def _shown(field: bytes) -> str:
    """Return a field as printable text of at most 40 characters, for an error message."""
    text = ascii(field.decode("latin-1"))
    return text if len(text) <= 40 else f"{text[:36]}...'"
