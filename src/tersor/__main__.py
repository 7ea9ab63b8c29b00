"""``python -m tersor``: the same as the command ``tersor``."""

import os
import sys

from tersor._process import end_rank
from tersor.cli import main

if __name__ == "__main__":
    code = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_rank(code)
    sys.exit(code)
