"""Predictors: exact on integers, so that prediction never touches the error bound."""
