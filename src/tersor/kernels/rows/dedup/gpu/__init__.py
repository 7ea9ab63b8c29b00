"""Equal rows in Triton: compared word by word, numbered in order of appearance."""
