"""What the measurements of every site use."""
