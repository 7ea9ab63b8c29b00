"""Workloads: data, models and training runs."""
