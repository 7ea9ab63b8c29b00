"""Predicted times, from rows that were measured."""
