"""What the measurements of every site use: timing, machines, result rows and their comparison."""
