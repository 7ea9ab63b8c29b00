"""Tiles of whole groups on the GPU as rows of 32 values, from memory and back."""
