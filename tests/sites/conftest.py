"""What the tests of sites share."""

from __future__ import annotations

import pytest

from tests.sites.compiled import compile_kernels


@pytest.fixture(autouse=True, scope="session")
def _compiled() -> None:
    compile_kernels()
