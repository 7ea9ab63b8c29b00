"""Counting symbols on a GPU, for the tables of the entropy coders."""
