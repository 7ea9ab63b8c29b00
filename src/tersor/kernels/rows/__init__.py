"""De-duplicated rows: entropy-coded distinct rows, and an index that restores all rows from them."""
