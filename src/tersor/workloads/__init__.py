"""Models, data and trainings that demonstrate the sites."""
