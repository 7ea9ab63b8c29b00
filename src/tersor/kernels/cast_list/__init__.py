"""Narrower floats of a list of tensors in one launch."""
