"""Models and data that show what the sites do in training."""
