"""Values of every float dtype as the float32 that groups are made of, and back."""
