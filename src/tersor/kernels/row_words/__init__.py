"""Rows as words: loaded, hashed and compared inside a kernel."""
