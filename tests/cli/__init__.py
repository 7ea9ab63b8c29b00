"""The command line, run in this process through ``main`` and, where it matters, in one of its own."""
