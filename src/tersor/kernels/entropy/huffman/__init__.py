"""Canonical, length-limited Huffman coding in independent chunks of four streams."""

from tersor.kernels.runtime.op import Op

huffman_encode = Op(
    "huffman_encode",
    {
        "reference": "tersor.kernels.entropy.huffman.reference:huffman_encode",
        "cpu": "tersor.kernels.entropy.huffman.cpu.streams:huffman_encode",
        "gpu": "tersor.kernels.entropy.huffman.gpu:huffman_encode",
    },
)
huffman_decode = Op(
    "huffman_decode",
    {
        "reference": "tersor.kernels.entropy.huffman.reference:huffman_decode",
        "cpu": "tersor.kernels.entropy.huffman.cpu.streams:huffman_decode",
        "gpu": "tersor.kernels.entropy.huffman.gpu:huffman_decode",
    },
)

__all__ = ["huffman_decode", "huffman_encode"]
