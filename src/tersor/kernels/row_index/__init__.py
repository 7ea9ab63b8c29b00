"""The index of de-duplicated rows, and entropy-coded symbols, inside a kernel."""
