"""Where Triton's kernels run in a test: on a GPU, or in the interpreter on CPU tensors.

Without a GPU ``conftest`` sets ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
MARKS = [] if INTERPRETED else [pytest.mark.gpu]
"""The ``pytestmark`` of a module whose tests run in both places."""
