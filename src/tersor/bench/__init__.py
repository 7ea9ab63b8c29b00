"""Benchmarks: shared code in ``core``, peers, one folder per site, and the report on the results."""
