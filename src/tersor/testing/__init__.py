"""Conformance checks for codecs, including your own: every promise of a codec, on adverse inputs.

In a test of your package::

    def test_my_codec_keeps_its_promises():
        tersor.testing.check_codec(tersor.create("my-codec"))
"""

from tersor.testing.asserts import assert_bits_equal, assert_config_roundtrip, assert_within_bound
from tersor.testing.conformance import CheckResult, check_codec, run_checks
from tersor.testing.inputs import inputs

__all__ = [
    "CheckResult",
    "assert_bits_equal",
    "assert_config_roundtrip",
    "assert_within_bound",
    "check_codec",
    "inputs",
    "run_checks",
]
