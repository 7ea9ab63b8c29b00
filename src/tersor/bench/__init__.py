"""Measurements: inputs, timing, result rows, peers, suites and the tables made from them."""
