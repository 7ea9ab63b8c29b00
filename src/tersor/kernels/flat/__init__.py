"""Payloads of codec ``flat`` for a whole list of tensors, on the device and without waiting."""
