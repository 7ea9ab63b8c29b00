"""Embedding benchmarks: exchanges between ranks, look-ups, accuracy, predicted times, and goals."""
