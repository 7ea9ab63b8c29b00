"""Look-up benchmarks: encoders measured on looked-up rows per table and slice, and their totals."""
