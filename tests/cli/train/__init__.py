"""Trainings from the command line."""
