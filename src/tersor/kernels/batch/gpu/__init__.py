"""Payloads of lists of tensors in Triton, without waiting for the device."""
