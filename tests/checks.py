"""The checks that many tests share; ``test_checks.py`` plants a fault for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from tersor.errors import TersorError
from tersor.testing import assert_bits_equal, assert_config_roundtrip, assert_within_bound

__all__ = [
    "assert_bits_equal",
    "assert_config_roundtrip",
    "assert_rejects",
    "assert_within_bound",
]
_Error = TypeVar("_Error", bound=TersorError)


def assert_rejects(call: Callable[[], object], error: type[_Error]) -> _Error:
    """Fail unless ``call`` raises ``error`` with a message of one line; return the error."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.strip(), f"{error.__name__} without a message"
    assert "\n" not in message, f"{error.__name__} with more than one line: {message!r}"
    return caught.value
