"""Tiles of whole groups on the GPU, from values to fields and back."""
