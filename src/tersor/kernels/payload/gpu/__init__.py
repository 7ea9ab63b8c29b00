"""Headers, modes and outliers of payloads in Triton."""
