"""Tests of the parts that every training uses."""
