"""Frames of payloads whose sizes only the device knows."""
