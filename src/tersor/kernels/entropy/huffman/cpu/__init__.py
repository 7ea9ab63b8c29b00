"""Huffman coding in numba."""
