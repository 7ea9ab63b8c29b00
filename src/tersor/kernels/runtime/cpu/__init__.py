"""The numba compiler and intrinsics."""
