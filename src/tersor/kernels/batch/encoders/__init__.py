"""Encoders: int32 codes to bytes, losslessly."""
