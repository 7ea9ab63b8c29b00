"""Takes one step of a small ResNet; prints bytes by which the process grew: after forward, and at most.

Usage: python -m tests.sites.activations.peak_child none|CODEC
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tersor import Bound
from tersor.sites import activations
from tests.sites.activations.models import resnet


def resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(codec: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = resnet(width=32, num_blocks=4)
    options = {"ans": {"bound": Bound.relative(0.03)}, "rms": {"step": 1.0}}.get(codec, {})
    context = nullcontext() if codec == "none" else activations.compressed(codec, **options)
    # what is compiled or loaded once is not the step's
    step(model, torch.randn(2, 3, 64, 64), context)
    x = torch.randn(32, 3, 64, 64)
    base, most, done = resident_nbytes(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            most[0] = max(most[0], resident_nbytes())
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    held = step(model, x, context)
    done.set()
    thread.join()
    print(held - base, most[0] - base)


def step(model: nn.Module, x: torch.Tensor, context: object) -> int:
    with context:
        out = model(x)
    held = resident_nbytes()
    functional.cross_entropy(out, torch.zeros(len(x), dtype=torch.int64)).backward()
    return held


if __name__ == "__main__":
    main(sys.argv[1])
