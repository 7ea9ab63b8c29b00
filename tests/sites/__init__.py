"""Sites, each on real ranks where it has some."""
