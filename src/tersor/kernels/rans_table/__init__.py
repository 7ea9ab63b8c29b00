"""The tables of rANS on a GPU: frequencies, what encodes a symbol, what decodes a slot."""
