"""De-duplicated rows: distinct rows entropy-coded, and an index that puts them back."""
