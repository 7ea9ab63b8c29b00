"""What reports show about embeddings: exchanges, look-ups, trainings and predictions."""
