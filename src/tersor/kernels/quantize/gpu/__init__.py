"""Ranges, grids and quantization in Triton."""
