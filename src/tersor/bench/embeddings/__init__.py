"""Embeddings: exchanges between ranks, look-ups, accuracy and predicted times, and their goals."""
