"""Bounds and codecs are chosen as the formulas say."""
