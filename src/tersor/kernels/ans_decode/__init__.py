"""Decoding of the payloads of the codec ``ans`` for a list of tensors."""
