"""Predicted steps of sharded and replicated trainings, from rows of ``tersor bench shards``."""
