"""Payloads of a list whose sizes follow from the shapes, so that each has its place beforehand."""
