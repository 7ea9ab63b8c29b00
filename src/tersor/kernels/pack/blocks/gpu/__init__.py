"""Blocks of codes in Triton, tile by tile."""
