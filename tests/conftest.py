"""What holds for every test: poisoned fresh memory, a fixed seed, and no leaks."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

# without a GPU, Triton kernels run in its interpreter; it asks when they are defined
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from tests.guards import leaked_env, leaked_process_groups, leaked_threads, poisoning
from tests.interpreter import speed_up


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="write the golden files anew instead of comparing with them; review the diff",
    )


@pytest.fixture
def write_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--write-golden"))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _poisoned_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (torch, "empty"),
            (torch, "empty_like"),
            (torch, "empty_strided"),
            (torch.Tensor, "new_empty"),
            (torch.Tensor, "new_empty_strided"),
        ):
            patch.setattr(owner, name, poisoning(getattr(owner, name)))
        yield


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    env, threads = dict(os.environ), set(threading.enumerate())
    yield
    leaks = [*leaked_env(env), *leaked_threads(threads), *leaked_process_groups()]
    if leaks:
        pytest.fail(f"the test leaked {', '.join(leaks)}", pytrace=False)


def pytest_collection_finish() -> None:
    """Take what was imported and collected out of garbage collection, for the rest of the process.

    A collection looks at a million objects of modules and tests, in 0.2 s, and benchmarks ask for one before they
    time anything.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionstart() -> None:
    """Speed up Triton's interpreter."""
    if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
        speed_up()
