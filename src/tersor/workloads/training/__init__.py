"""Common parts of all trainings, without models and data: loop, log, checkpoints and comparison."""
