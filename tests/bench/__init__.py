"""Measurements: rows, tables, goals, figures and pages made from them."""
