"""Groups of any even size on the GPU, and the arithmetic that all group kernels there share."""
