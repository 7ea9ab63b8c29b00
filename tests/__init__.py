"""The tests; ``tests.data`` and ``tests.checks`` are shared by all of them."""
