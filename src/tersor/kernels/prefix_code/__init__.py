"""Building prefix codes: lengths, canonical codes and decoding tables for ``huffman``."""
