"""Decoding of rANS of several streams at once."""
