"""Transforms: change of basis before quantizing, undone after decoding."""
