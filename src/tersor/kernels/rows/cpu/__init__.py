"""The index of de-duplicated rows in numba."""
