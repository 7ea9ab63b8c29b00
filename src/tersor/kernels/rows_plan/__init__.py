"""Sizes, places and headers of the payloads of lists of matrices."""
