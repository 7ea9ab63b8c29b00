"""Codecs and peers on arrays: the ``kernels``, ``memory`` and ``programs`` suites, and their goals."""
