"""Lossless coding of codes as symbols: alphabets, Huffman, rANS."""
