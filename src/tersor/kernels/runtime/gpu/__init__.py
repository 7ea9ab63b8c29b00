"""Launching Triton kernels, Triton's compiler, and tiles of many tensors."""
