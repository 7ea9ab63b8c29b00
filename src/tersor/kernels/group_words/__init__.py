"""Rows of 32 values of a group as words of four fields: what the GPU kernels of groups share."""
