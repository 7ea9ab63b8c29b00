"""Training of DLRM."""
