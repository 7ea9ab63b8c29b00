"""Fit a planning model of exchanges to result rows, and check its predictions."""
