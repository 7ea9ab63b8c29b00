"""Dumps of looked-up rows during training, for measurements of codecs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tersor.atomic import atomic_write
from tersor.errors import SpecError
from tersor.workloads.data.clicks import ClickBatch
from tersor.workloads.dlrm.run import DlrmRun


@dataclass(frozen=True, slots=True)
class Dumps:
    """Destination and frequency of dumps.

    Attributes:
        folder: receives one ``.npy`` per table and step, and ``tables.json``.
        every: number of steps between dumps; the last step is dumped too.
    """

    folder: Path
    every: int

    def __post_init__(self) -> None:
        """Require a positive number of steps."""
        if self.every < 1:
            raise SpecError(f"dumps need at least one step between them, not {self.every}")

    def refuse_files(self) -> None:
        """Raise ``SpecError`` unless the folder is missing or empty."""
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise SpecError(f"{self.folder} is a file; name a folder for the dumps")
        if any(self.folder.iterdir()):
            raise SpecError(f"{self.folder} is not empty; dumps go to a folder of their own")

    def num_files(self) -> int:
        """Return the number of dump files, one per table and step."""
        return len(list(self.folder.glob("step-*-table-*.npy")))

    def write_if_due(self, run: DlrmRun, batch: ClickBatch) -> None:
        """Write the rows that the next step looks up, if it is due for a dump."""
        if run.step_number % self.every == 0 or run.step_number == run.config.steps - 1:
            dump_rows(run, batch.ids, self.folder)


def dump_rows(run: DlrmRun, ids: torch.Tensor, folder: Path) -> None:
    """Write the looked-up rows of this rank's tables, one ``.npy`` per table and step.

    ``tables.json`` in the same folder holds the number of rows of each table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / "tables.json") as file:
        file.write(json.dumps({"num_rows": list(run.config.shape.num_rows)}).encode() + b"\n")
    with torch.no_grad():
        found = run.model.look_up(ids.to(run.device))
    for table, rows in zip(run.model.table_numbers, found, strict=True):
        name = f"step-{run.step_number:09d}-table-{table:02d}.npy"
        with atomic_write(folder / name) as file:
            np.save(file, rows.cpu().numpy(), allow_pickle=False)
