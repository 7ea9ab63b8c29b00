"""Narrow codes of a whole list of tensors, on the device and without waiting."""
