"""Parser for ``gpulz``, which prints a ratio and two throughputs, and not always the sizes."""

from __future__ import annotations

from typing import Final

from tersor.bench.peers.logs.scan import Figure, LogFormat, ProgramRun, Record

_GBPS_PER_UNIT: Final = 2**20 / 1e6
"""The values printed as GB/s are MiB per millisecond."""

_FIGURES: Final = (
    Figure("given", r"^the original size: (\S+)", "the original size: 4096", False),
    Figure("encoded", r"^the compressed size: (\S+)", "the compressed size: 9", False),
    Figure("ratio", r"^compression ratio: (\S+)\s*$", "compression ratio: 11.5429"),
    Figure(
        "encode", r"^compression e2e throughput: (\S+) GB/s",
        "compression e2e throughput: 20.9908 GB/s",
    ),
    # the version that is called from Python prints "compression" for both directions
    Figure(
        "decode", r"^(?:de)?compression e2e throughput: (\S+) GB/s",
        "decompression e2e throughput: 34.4679 GB/s",
    ),
)  # fmt: skip


def _build(record: Record) -> ProgramRun:
    sizes = {name: record.whole(name) for name in ("given", "encoded") if name in record.values}
    return ProgramRun(
        line=record.line,
        device="cuda",
        codec="gpulz",
        input=record.command.file_of("-i"),
        given_nbytes=sizes.get("given"),
        encoded_nbytes=sizes.get("encoded"),
        ratio=record.number("ratio"),
        encode_gbps=record.number("encode") * _GBPS_PER_UNIT,
        decode_gbps=record.number("decode") * _GBPS_PER_UNIT,
        note="printed MiB/ms counted as such",
    )


FORMAT: Final = LogFormat(
    name="gpulz",
    title="gpulz",
    program="gpulz",
    figures=_FIGURES,
    failures=r"verification failed|(?i:CUDA error)",
    build=_build,
)
