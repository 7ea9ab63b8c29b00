"""The model behind synthetic click logs: the distribution of ids, and the probability of a click.

All computation is integer arithmetic or single IEEE operations, so every machine gets the same bits. The
terms of sums that could be reordered are integers small enough to be added exactly in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tersor.workloads.data.hashes import GOLDEN, U64, hashes, scrambled

I64: TypeAlias = npt.NDArray[np.int64]
F32: TypeAlias = npt.NDArray[np.float32]

CHANCE_NBITS: Final = 24
"""Probabilities are integers out of 2**24, too coarse to depend on the last bit of a machine's exp."""

_CLICK_RATE: Final = 0.25
_CELLS: Final = 4096
"""Number of cells of equal probability that the ids of a table are divided into."""
_FADE: Final = np.float32(64.0)
"""The id whose weight is one half; the most common id has weight 1, rare ones almost 0."""
_FACTORS: Final = 4
# Contribution of each part to the logit, per unit of its integer sum. With these the best AUC is 0.80
# (0.790 to 0.817 over 12 seeds; 0.816 for seed 0 with at most 100,000 rows, where a DLRM of width 16
# reached 0.7943 after 0.5 and 0.7975 after 1 million samples). Common ids contribute most, because
# products and rare ids take far more samples to learn.
_EFFECT_STEP: Final = np.float32(0.33 / 26755.0)
_PAIR_STEP: Final = np.float32(0.06 / 74.0**2)
_DENSE_STEP: Final = np.float32(0.35)
_LOGIT_LIMIT: Final = 16
_LOGIT_STEPS: Final = 128
"""Resolution of the rounded logit, in steps per unit; a table then holds every probability."""
_PILOTS: Final = 8192
"""Number of samples used to calibrate the click rate."""

_MODEL_STREAM, _PILOT_STREAM = 2, 3
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)
_LANES: Final = np.uint64(0x0000FFFF0000FFFF)
_UNIT_NORMAL: Final = np.float32(1.0 / 37837.0)
"""Scales the sum of four 16-bit numbers to a variance of 1."""


def normal(bits: U64) -> F32:
    """Return an approximately normal number of variance 1 per 64 bits."""
    total = (bits & _LANES) + ((bits >> np.uint64(16)) & _LANES)
    total = (total & _LOW_HALF) + (total >> np.uint64(32))
    return (total.view(np.int64) - 2 * 0xFFFF).astype(np.float32) * _UNIT_NORMAL


@dataclass(frozen=True, slots=True)
class PlantedModel:
    """The distribution of ids, and the click probability of samples.

    Attributes:
        first_id: int64 [tables * cells], the first id of each cell.
        num_ids: uint64 [tables * cells], number of ids in the cell.
        keys: uint64 [tables], offset of the hashes of each table's ids.
        bias: added to every logit, in steps.
    """

    first_id: I64
    num_ids: U64
    keys: U64
    bias: int

    def ids(self, bits: U64) -> I64:
        """Return an id per table: the upper bits choose a cell, the lower ones an id in it."""
        cell = (bits >> np.uint64(52)).view(np.int64)
        cell += np.arange(0, cell.shape[1] * _CELLS, _CELLS)
        place = (bits & _LOW_HALF) * self.num_ids[cell] >> np.uint64(32)
        ids: I64 = self.first_id[cell] + place.view(np.int64)
        return ids

    def chances(self, dense: F32, ids: I64) -> I64:
        """Return the click probability of each sample, as an integer out of ``2**CHANCE_NBITS``."""
        return _sigmoid_steps()[self.logit_steps(dense, ids)]

    def logit_steps(self, dense: F32, ids: I64) -> I64:
        """Return the true logit of each sample, as an index into ``_sigmoid_steps``."""
        logits = self._of_ids(ids) + _DENSE_STEP * _dense_logit(dense)
        steps = np.rint(logits * np.float32(_LOGIT_STEPS)).astype(np.int64)
        limit = _LOGIT_LIMIT * _LOGIT_STEPS
        clipped: I64 = np.clip(steps + (limit + self.bias), 0, 2 * limit)
        return clipped

    def _of_ids(self, ids: I64) -> F32:
        """Return the contribution of the ids to the logit.

        The upper half of the hash of an id is its effect. The lower half holds its factors, which are
        multiplied by those of the next table.
        """
        bits = scrambled(ids.view(np.uint64) * GOLDEN + self.keys)
        weight = _FADE / (ids.astype(np.float32) + _FADE)
        effect = (bits >> np.uint64(48)) + ((bits >> np.uint64(32)) & np.uint64(0xFFFF))
        centred = (effect.view(np.int64) - 0xFFFF).astype(np.float32)
        effects = np.rint(centred * weight).sum(1)
        octets = bits.astype("<u8", copy=False).view(np.int8).reshape(*bits.shape, 8)
        products = np.zeros((len(ids), ids.shape[1] - 1), np.float32)
        for k in range(_FACTORS):
            factor = octets[:, :, k].astype(np.float32)
            products += factor[:, 1:] * factor[:, :-1]
        products *= weight[:, 1:]
        products *= weight[:, :-1]
        of_ids: F32 = _EFFECT_STEP * effects + _PAIR_STEP * np.rint(products).sum(1)
        return of_ids


def _dense_logit(x: F32) -> F32:
    """Return the contribution of the dense features to the logit."""
    saturating = x[:, 0] / (np.float32(0.5) + np.abs(x[:, 0]))
    phase = x[:, 1] - np.float32(2.0) * np.rint(x[:, 1] * np.float32(0.5))
    wave = np.float32(4.0) * phase * (np.float32(1.0) - np.abs(phase))
    bent = np.maximum(x[:, 4], np.float32(0.0)) - np.float32(0.5) * np.abs(x[:, 5])
    dense_logit: F32 = saturating + wave + x[:, 2] * x[:, 3] + bent
    return dense_logit


@lru_cache(maxsize=1)
def _sigmoid_steps() -> I64:
    """Return the click probability for each step of the logit."""
    limit = _LOGIT_LIMIT * _LOGIT_STEPS
    logits = [step / _LOGIT_STEPS for step in range(-limit, limit + 1)]
    return np.array([round((1 << CHANCE_NBITS) / (1.0 + math.exp(-x))) for x in logits], np.int64)


@lru_cache(maxsize=8)
def planted_model(num_rows: tuple[int, ...], num_dense: int, seed: int) -> PlantedModel:
    """Return the model of a seed, with its bias calibrated to one click in four."""
    cells = [_cells(rows) for rows in num_rows]
    first_id, num_ids = (np.concatenate(parts) for parts in zip(*cells, strict=True))
    keys = hashes(seed, _MODEL_STREAM, 0, len(num_rows))
    unbiased = PlantedModel(first_id, num_ids.astype(np.uint64), keys, 0)
    width = num_dense + len(num_rows)
    bits = hashes(seed, _PILOT_STREAM, 0, _PILOTS * width).reshape(_PILOTS, width)
    steps = unbiased.logit_steps(normal(bits[:, :num_dense]), unbiased.ids(bits[:, num_dense:]))
    chances = _sigmoid_steps()
    wanted = int(_CLICK_RATE * (1 << CHANCE_NBITS)) * _PILOTS
    low, high = -len(chances), len(chances)
    while high - low > 1:
        middle = (low + high) // 2
        total = int(chances[np.clip(steps + middle, 0, len(chances) - 1)].sum())
        low, high = (low, middle) if total >= wanted else (middle, high)
    return PlantedModel(first_id, unbiased.num_ids, keys, high)


def _cells(num_rows: int) -> tuple[I64, I64]:
    """Return the first id and the number of ids of each cell of a table, the most common ids first.

    This inverts the continuous Zipf law of exponent 9/8, whose powers are three square roots and three
    squarings.
    """
    share = np.arange(_CELLS + 1) / _CELLS
    last = 1.0 / math.sqrt(math.sqrt(math.sqrt(num_rows + 1.0)))
    root = 1.0 - share * (1.0 - last)
    square = root * root
    fourth = square * square
    edges = np.floor(1.0 / (fourth * fourth)).astype(np.int64)
    edges[-1] = num_rows + 1
    first = np.minimum(edges[:-1], num_rows)
    return first - 1, np.maximum(edges[1:] - first, 1)
