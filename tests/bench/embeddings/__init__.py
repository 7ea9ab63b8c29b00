"""Exchanges between ranks, look-ups, accuracy and predicted times."""
