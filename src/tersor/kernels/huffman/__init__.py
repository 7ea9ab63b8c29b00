"""Canonical, length-limited Huffman coding in independent chunks of four streams."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.huffman"

huffman_encode = Op(
    "huffman_encode",
    {
        "reference": f"{_HERE}.reference:huffman_encode",
        "cpu": f"{_HERE}.cpu:huffman_encode",
        "gpu": f"{_HERE}.gpu:huffman_encode",
    },
)
huffman_decode = Op(
    "huffman_decode",
    {
        "reference": f"{_HERE}.reference:huffman_decode",
        "cpu": f"{_HERE}.cpu:huffman_decode",
        "gpu": f"{_HERE}.gpu:huffman_decode",
    },
)

__all__ = ["huffman_decode", "huffman_encode"]
