"""rANS in Triton, for one stream and for lists of streams."""
