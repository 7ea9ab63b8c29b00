"""Parts of every training: log, schedule, checkpoints, resuming, comparison; no model and no data."""
