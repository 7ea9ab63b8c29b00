"""Flat payloads of a list of small tensors in two launches."""
