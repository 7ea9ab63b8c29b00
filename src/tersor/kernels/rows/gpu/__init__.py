"""Distinct rows and their index in Triton."""
