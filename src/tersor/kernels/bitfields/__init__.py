"""Fields of equal width inside one tile: the inner loops of fixed-length packing."""
