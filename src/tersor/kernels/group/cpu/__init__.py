"""Group quantization in numba."""
