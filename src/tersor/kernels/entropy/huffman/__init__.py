"""Canonical, length-limited Huffman coding in independent chunks of four streams."""

from tersor.kernels.runtime.op import Op

huffman_encode = Op.of(
    __name__, "huffman_encode", reference="reference", cpu="cpu.encode", gpu="gpu"
)
huffman_decode = Op.of(
    __name__, "huffman_decode", reference="reference", cpu="cpu.decode", gpu="gpu"
)

__all__ = ["huffman_decode", "huffman_encode"]
