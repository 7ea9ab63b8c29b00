"""Codecs and peers on the look-ups of embedding tables."""
