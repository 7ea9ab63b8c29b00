"""The command ``tersor``: one module per verb, results on stdout, messages on stderr."""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """Run one command line, given without the program's name; return its exit code.

    The codes are: 0 success, 1 a check failed or a file is damaged, 2 wrong usage, 130 interrupted,
    141 the reader of the output is gone. Bad input never raises.
    """
    from tersor.cli.app import run
    from tersor.cli.failures import exit_code_of

    return exit_code_of(lambda: run(argv))


__all__ = ["main"]
