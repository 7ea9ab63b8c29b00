"""Costs that ship with the package.

Those of the H200 are derived from results/2026-11-kernels-h200.jsonl, and a test recomputes them. Gradients,
activations and fields are single tensors of 64 MiB and 1 GiB. A line through the medians of their times at both sizes,
over all bounds, gives the costs: its slope is the speed, and its value at zero bytes is the fixed time. Exceptions:

- ``ans-wide`` comes from the fields within a relative bound of 0.001, the only result rows with more than 256 codes.
  The costs of ``ans`` and ``rows`` exclude those rows.
- ``rows`` is chosen where rows repeat. Its fixed times are those of the line. Its speeds are those of the look-ups
  (436 MB) after subtracting the fixed times.
- ``raw`` uses the results of a copy, because the codec itself has none.

The results of ``flat``, ``delta`` and ``ans-wide`` predate their current kernels, which are faster, so ``auto`` chooses
wide ``ans`` less often than it should.

These results were timed with the host running ahead of the GPU: they include only the host time that the GPU waits for.
``measuring`` includes all host time.
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
"""Speeds rounded down from results/2026-11-kernels-cpu.jsonl; only their order of magnitude matters. The fixed time of
a call is negligible on a CPU."""

SHIPPED: Final = {costs.device: costs for costs in (H200,)}
"""Costs of GPUs, by the name that torch reports for the device."""
