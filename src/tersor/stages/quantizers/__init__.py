"""Quantizers: floats to integers, either within a bound or to a fixed number of bits."""
