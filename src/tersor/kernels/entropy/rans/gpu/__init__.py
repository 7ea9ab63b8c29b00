"""rANS in Triton: one stream, and many streams of a list."""
