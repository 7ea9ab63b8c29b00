from __future__ import annotations

import pytest

from tests.arch.import_rules import findings
from tests.arch.source_files import PACKAGE, plant

FAULTS = {
    "errors.py": "from tersor.types import Bound\nfrom tersor.kernels.runtime import op",
    "types.py": "import tersor.codecs.raw",
    "chunks.py": "from tersor import compress",
    "kernels/runtime/op.py": "from tersor.codecs import registry",
    "kernels/flat/cpu.py": "",
    "kernels/quantize/gpu/tiles.py": "from tersor.kernels.payload.gpu.plan import padded",
    "kernels/rows/compose.py": "from tersor.kernels import batch, pack",
    "kernels/batch/reference.py": "import triton",
    "kernels/pack/reference.py": "from numba import njit",
    "kernels/pack/cpu.py": "import numba\nimport triton.language as tl",
    "kernels/pack/gpu.py": "import triton\nfrom llvmlite import ir",
    "codecs/raw.py": "def late():\n    from tersor.container import reader",
    "container/reader.py": "from tersor.api import compress",
    "container/frame.py": "from torch import distributed as dist",
    "container/writer.py": "import torch\nrank = torch.distributed.get_rank()",
    "api.py": "from importlib import import_module\nimport_module('tersor.policy')",
    "__init__.py": "from tersor.sites import shards, fields",
    "policy/choice.py": "from ..sites import shards",
    "sites/shards/hooks.py": "from tersor.sites.fields import zarr\nimport torch.distributed",
    "sites/embeddings/exchange.py": "from torchrec.distributed.types import CommOp",
    "workloads/gpt.py": "from tersor.bench.core.timing import measure",
    "bench/plots/lines.py": "from matplotlib.figure import Figure\nfrom tersor.cli import main",
    "bench/report/page.py": "def late():\n    import matplotlib.style",
    "bench/core/rows.py": "from tersor.bench.embeddings.contenders import CONTENDERS",
    "bench/kernels/suite.py": "from tersor.bench.embeddings import contenders\nimport tersor.bench.core",
    "bench/embeddings/suite.py": "from tersor.bench.sites import SITES",
    "bench/report/building.py": "from tersor.bench.kernels.report import codecs_section",
    "bench/core/tables.py": "from jinja2 import Template",
    "bench/peers/zstd.py": "from ..kernels import variants",
    "bench/tables.py": "",
    "cli/report.py": "from matplotlib import pyplot",
    "helpers.py": "",
}

ALLOWED = {
    "errors.py": "import math",
    "types.py": "import torch\nfrom tersor.errors import SpecError",
    "kernels/pack/__init__.py": "from tersor.kernels.runtime.op import Op",
    "kernels/batch/gpu/flat.py": "import triton\nfrom tersor.kernels.pack import blocks",
    "kernels/batch/cpu/flat.py": "from numba import njit",
    "kernels/pack/cpu.py": "from numba import njit\nfrom llvmlite import ir",
    "kernels/pack/gpu.py": "import triton\nimport triton.language as tl",
    "codecs/raw.py": "from tersor.codecs.codec import Codec\nfrom tersor import errors",
    "container/reader.py": "from tersor.codecs import registry",
    "api.py": "from tersor.container import reader",
    "__init__.py": "from tersor.api import compress",
    "sites/__init__.py": "from tersor.sites import shards, fields",
    "sites/shards/__init__.py": "from tersor.sites.shards.hooks import attach",
    "sites/shards/hooks.py": "import torch.distributed as dist\nfrom . import state",
    "sites/embeddings/torchrec/codec.py": "import torchrec",
    "workloads/gpt.py": "from torch import distributed\nfrom tersor.sites import shards",
    "bench/plots/chart.py": "from matplotlib.figure import Figure\nimport tersor",
    "bench/report/page.py": "from jinja2 import Environment\nfrom tersor.bench import plots",
    "bench/embeddings/report/lookups.py": "from tersor.bench.report.section import Section",
    "bench/page.py": "from tersor.bench import embeddings, kernels\nfrom tersor.bench.core import rows",
    "bench/embeddings/suite.py": "from . import contenders\nfrom tersor.bench.peers import mx4",
    "cli/bench.py": "from tersor.bench import kernels",
}


def test_the_package_keeps_its_layers() -> None:
    assert findings(PACKAGE) == []


@pytest.mark.parametrize("name", FAULTS)
def test_one_planted_import_gives_exactly_one_finding(name, tmp_path) -> None:
    found = findings(plant(tmp_path, {name: FAULTS[name]}))
    assert len(found) == 1, found
    assert found[0].startswith(name)


def test_all_planted_imports_are_found_together(tmp_path) -> None:
    found = findings(plant(tmp_path, FAULTS))
    assert len(found) == len(FAULTS), found


def test_every_allowed_import_passes(tmp_path) -> None:
    assert findings(plant(tmp_path, ALLOWED)) == []
