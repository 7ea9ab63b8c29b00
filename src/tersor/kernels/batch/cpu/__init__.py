"""Payloads of lists of small tensors in numba."""
