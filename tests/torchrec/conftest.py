"""Without torchrec there is nothing to collect here."""

from __future__ import annotations

from importlib.util import find_spec

from tests.sites import ranks

# doctest would import it, and make errors of torchrec's warnings
collect_ignore_glob = ["models.py"]
if find_spec("torchrec") is None:
    collect_ignore_glob.append("test_*.py")
else:
    # importing it takes seconds: once, and not once per rank
    ranks._CONTEXT.set_forkserver_preload(["tests.sites.preloaded", "tests.torchrec.models"])
