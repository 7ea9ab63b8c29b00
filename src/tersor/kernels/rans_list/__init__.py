"""Interleaved rANS of several streams at once, whose sizes only the device knows."""
