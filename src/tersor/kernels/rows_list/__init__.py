"""The codec ``rows`` with rANS for lists of matrices: encoding, without waiting."""
