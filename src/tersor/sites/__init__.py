"""The places in training where a tensor moves or waits."""
