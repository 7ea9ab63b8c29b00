"""Models used to demonstrate the sites."""
