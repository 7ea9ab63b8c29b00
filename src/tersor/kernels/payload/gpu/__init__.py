"""Payloads in Triton: headers, modes, outliers and frames."""
