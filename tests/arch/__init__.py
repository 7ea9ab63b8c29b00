"""Rules about the source itself, each with a twin that plants a fault and expects it found."""
