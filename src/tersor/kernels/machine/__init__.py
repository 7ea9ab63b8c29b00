"""What the processor offers below arrays: raw memory access and bit scatter/gather."""
