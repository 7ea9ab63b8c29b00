"""Measurements: what all share in ``core``, peers, a folder per site, and the report on them."""
