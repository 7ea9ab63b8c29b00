"""Symbols and their histograms in Triton."""
