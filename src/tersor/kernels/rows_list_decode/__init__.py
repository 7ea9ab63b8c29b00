"""The codec ``rows`` with rANS for lists of matrices: decoding, without waiting."""
