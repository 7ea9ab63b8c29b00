"""Parser for cuSZ's ``bin_hf``, which has been called ``bin_phf`` since 2024.

The printed times are used, but not the throughputs: ``bin_hf`` counts four bytes per code whatever their
type, and ``bin_phf`` counts the compressed bytes when it decodes.
"""

from __future__ import annotations

from typing import Final

from tersor.bench.peers.logs.scan import Figure, LogFormat, ProgramRun, Record
from tersor.errors import CorruptDataError

_TIME: Final = r"(?:shortest time \(ms\): |\S+ GiB/s at )(\S+)"
_FIGURES: Final = (
    Figure(
        "encode_ms", rf"^\[psz::info::res::(?:comp_)?hf_encode\] {_TIME}",
        "[psz::info::res::comp_hf_encode] shortest time (ms): 0.25",
    ),
    Figure(
        "decode_ms", rf"^\[psz::info::res::(?:decomp_)?hf_decode\] {_TIME}",
        "[psz::info::res::decomp_hf_decode] shortest time (ms): 0.25",
    ),
    Figure(
        "type", r"^HF run version-\d.*, input type: u([124])\s*$",
        "HF run version-1, input type: u1", False,
    ),
    Figure("given_codes", r"^Huffman in  len:\s*(\S+)", "Huffman in  len: 9", False),
    Figure("given", r"^Huffman in  bytes:\s*(\S+)", "Huffman in  bytes: 9", False),
    Figure("encoded", r"^Huffman out (?:len|bytes):\s*(\S+)", "Huffman out len: 1024"),
    Figure(
        "ratio", r"^\"?Huffman CR .*:\s*([0-9.eE+-]+|nan|inf)\s*$",
        '"Huffman CR = sizeof(E) * len / outlen", where outlen is byte count: 2.42',
    ),
)  # fmt: skip


def _build(record: Record) -> ProgramRun:
    encoded, ratio = record.whole("encoded"), record.number("ratio")
    given, value_nbytes = _given(record, encoded, ratio)
    return ProgramRun(
        line=record.line,
        device="cuda",
        codec="cusz-hf",
        # the file is the first argument
        input=next((one.rpartition("/")[2] for one in record.command.arguments), None),
        given_nbytes=given,
        encoded_nbytes=encoded,
        value_nbytes=value_nbytes,
        ratio=given / encoded,
        encode_s=record.number("encode_ms") / 1e3,
        decode_s=record.number("decode_ms") / 1e3,
        note="best of ten, without histogram and codebook",
    )


def _given(record: Record, encoded: int, ratio: float) -> tuple[int, int | None]:
    """Return the bytes of all codes and of one code, the latter None if the output does not say."""
    if "given" in record.values:
        return record.whole("given"), record.whole("type") if "type" in record.values else None
    if "given_codes" not in record.values:
        raise CorruptDataError(
            f"line {record.line} of {record.where}: the run that begins here has no line like "
            "'Huffman in  len: 1024'"
        )
    codes = record.whole("given_codes")
    # the ratio has two decimals, which are enough to distinguish 1, 2 and 4 bytes
    value_nbytes = min((1, 2, 4), key=lambda n: abs(n * codes / encoded - ratio))
    if abs(value_nbytes * codes / encoded - ratio) > 0.006 + 1e-6 * ratio:
        raise CorruptDataError(
            f"line {record.lines['ratio']} of {record.where}: a ratio of {ratio:g} does not follow "
            f"from {codes} codes in {encoded} bytes"
        )
    return codes * value_nbytes, value_nbytes


FORMAT: Final = LogFormat(
    name="cusz",
    title="cuSZ's bin_hf",
    program=r"bin_p?hf",
    figures=_FIGURES,
    failures=r"^!!!!  ERROR|(?i:CUDA error|GPU error)",
    build=_build,
)
