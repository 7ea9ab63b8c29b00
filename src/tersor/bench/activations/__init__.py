"""Measurements of what waits for backward: bytes, peaks, times and gradients of training steps."""
