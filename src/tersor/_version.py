"""The version of the package, for modules of every layer."""

from typing import Final

__version__: Final = "0.1.0.dev0"
