"""Packing of tiles of 1024 values on a GPU."""
