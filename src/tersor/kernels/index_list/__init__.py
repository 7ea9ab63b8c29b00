"""The index of de-duplicated rows of lists of matrices."""
