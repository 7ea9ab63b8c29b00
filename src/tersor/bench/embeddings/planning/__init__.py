"""From result rows to a model of exchanges, and what the model is worth."""
