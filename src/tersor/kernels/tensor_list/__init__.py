"""Lists of tensors as one kernel launch sees them: addresses, lengths, and who owns which tile."""
