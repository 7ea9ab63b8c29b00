"""Measurements of saved activations: bytes, peak memory, times and gradients of training steps."""
