"""Payloads of the codec ``ans`` for a list of tensors."""
