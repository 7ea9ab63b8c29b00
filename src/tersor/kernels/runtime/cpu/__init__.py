"""Numba's compiler and its intrinsics."""
