"""Benchmarks of exchanging weights and gradients between ranks in sharded and replicated training."""
