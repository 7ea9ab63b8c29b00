"""Lossless entropy coding of quantization codes: alphabets, Huffman, rANS."""
