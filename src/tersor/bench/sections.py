"""The sections of reports that sites provide, in the order in which a page shows them."""

from __future__ import annotations

from typing import Final

from tersor.bench.embeddings.report.exchanges import exchanges_section
from tersor.bench.embeddings.report.lookups import lookups_section
from tersor.bench.embeddings.report.predictions import predictions_section
from tersor.bench.embeddings.report.trainings import accuracy_section, training_section
from tersor.bench.kernels.report import codecs_section
from tersor.bench.report.building import SectionMaker

SECTIONS: Final[tuple[SectionMaker, ...]] = (
    exchanges_section,
    lookups_section,
    codecs_section,
    accuracy_section,
    predictions_section,
    training_section,
)
