"""Ranges and quantization in numba."""
