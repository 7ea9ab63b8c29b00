"""One block of rANS on a GPU, for single streams and for lists of them."""
