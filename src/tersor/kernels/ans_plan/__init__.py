"""Alphabets, sizes and places of the payloads of ``ans`` for lists of tensors."""
