"""The heads of the payloads of lists of matrices, read on the device."""
