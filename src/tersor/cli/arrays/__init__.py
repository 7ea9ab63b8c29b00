"""Array files of other formats, read chunk by chunk and written from ``.tsr`` files."""

from tersor.cli.arrays.inputs import Inputs, open_inputs, parse_dtype, parse_shape
from tersor.cli.arrays.source import Source

__all__ = ["Inputs", "Source", "open_inputs", "parse_dtype", "parse_shape"]
