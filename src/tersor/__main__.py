"""``python -m tersor``: the same as the command ``tersor``."""

import sys

from tersor.cli import main

if __name__ == "__main__":
    sys.exit(main())
