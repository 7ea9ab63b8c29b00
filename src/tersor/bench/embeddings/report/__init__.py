"""The report sections about embeddings: exchanges, look-ups, training runs and predictions."""
