"""Integer codes at fixed lengths: one width per list, or per block of codes."""
