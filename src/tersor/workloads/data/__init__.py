"""Training data, read or made up."""
