"""Row de-duplication in Triton: rows are compared word by word, and numbered in order of appearance."""
