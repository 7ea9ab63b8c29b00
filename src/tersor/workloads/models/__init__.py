"""Models that the sites are shown on."""
