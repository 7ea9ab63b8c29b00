"""The quantization grids of a list of tensors, computed where their ranges are."""
