"""The shared inputs under the name that tests use; ``tersor.testing.inputs`` has them."""

from tersor.testing.inputs import FACTORIES, TIE_STEP, inputs, make, ties

__all__ = ["FACTORIES", "TIE_STEP", "inputs", "make", "ties"]
