"""Looked-up rows as benchmark inputs, per table and slice: what is measured on them and how it adds up."""
