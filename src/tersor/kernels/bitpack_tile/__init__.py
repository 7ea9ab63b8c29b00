"""Device functions that pack and unpack tiles of 1024 codes, for every kernel that does so."""
