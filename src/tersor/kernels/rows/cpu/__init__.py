"""The index of distinct rows in numba."""
