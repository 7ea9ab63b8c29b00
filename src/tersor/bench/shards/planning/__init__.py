"""Predict steps of sharded and replicated training from rows of ``tersor bench shards``."""
