"""Costs that come with the package.

Those of the H200 follow from results/2026-11-kernels-h200.jsonl, and a test computes them again.
Gradients, activations and fields are single tensors of 64 MiB and 1 GiB. The medians of their times
at both sizes, over all bounds, give a line: its slope is the speed, and what it has left at no bytes
is the fixed time. Exceptions:

- ``ans-wide`` is from the fields within a relative bound of 0.001, the only rows with more than 256
  codes, which those of ``ans`` and ``rows`` leave out.
- ``rows`` is chosen where rows repeat: its fixed times are those of the line, and its speeds those
  of the look-ups (436 MB) less these times.
- ``raw`` is taken as a copy, which has rows; the codec itself has none.

The rows of ``flat``, ``delta`` and ``ans-wide`` are older than their present kernels, which are faster: ``auto``
takes wide ``ans`` more seldom than it should.

The clock of these rows lets the host run ahead of the GPU: of the host's own time they contain what
the GPU waits for. ``measuring`` counts all of it.
"""

from __future__ import annotations

from typing import Final

from tersor.codecs.costs.table import WIDE_ANS, CodecCost, Costs

H200: Final = Costs(
    "NVIDIA H200",
    "shipped",
    {
        "flat": CodecCost.of((183, 1480), (68, 3300)),
        "ans": CodecCost.of((171, 990), (116, 2570)),
        WIDE_ANS: CodecCost.of((1140, 168), (559, 1460)),
        "delta": CodecCost.of((779, 349), (321, 639)),
        "rows": CodecCost.of((225, 816), (140, 2340)),
        "raw": CodecCost.of((1, 2130), (1, 2120)),
    },
)

CPU: Final = Costs(
    "one CPU core",
    "shipped",
    {
        "flat": CodecCost.of((0, 6), (0, 12)),
        "delta": CodecCost.of((0, 3), (0, 4)),
        "huffman": CodecCost.of((0, 2.5), (0, 4)),
        "rows": CodecCost.of((0, 3), (0, 5)),
        "raw": CodecCost.of((0, 10), (0, 10)),
    },
)
"""Speeds rounded down from results/2026-11-kernels-cpu.jsonl; only their order of magnitude matters
here. A call costs next to nothing there."""

SHIPPED: Final = {costs.device: costs for costs in (H200,)}
"""Costs of GPUs, by the name that torch gives the device."""
