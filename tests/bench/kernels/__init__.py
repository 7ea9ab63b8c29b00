"""Codecs and peers on arrays."""
