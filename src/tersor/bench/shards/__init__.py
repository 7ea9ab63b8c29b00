"""Weights and gradients between ranks of sharded and replicated trainings."""
