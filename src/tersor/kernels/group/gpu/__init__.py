"""Group quantization in Triton."""
