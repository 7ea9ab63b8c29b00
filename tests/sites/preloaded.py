"""What the server of ``ranks`` imports and loads once, so that none of its ranks has to."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.fsdp
import torch.distributed.tensor

import tersor.sites.embeddings
import tersor.sites.shards
import tests.sites.compiled

# threads do not survive a fork
torch.set_num_threads(1)
tests.sites.compiled.compile_kernels()

__all__ = ["pytest", "tersor", "tests", "torch"]
