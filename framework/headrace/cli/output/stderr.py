"""Prints messages to standard error, because standard output is for data, and asks questions."""

from __future__ import annotations

import sys

from headrace.cli.errors import UsageError
from headrace.model.text.printing import printable_lines


def print_notice(message: str) -> None:
    """Print a message on standard error."""
    print(printable_lines(f"headrace: {message}"), file=sys.stderr)


def print_hint(message: str) -> None:
    """Print what to do next, if standard output is a terminal."""
    if sys.stdout.isatty():
        print(printable_lines(message), file=sys.stderr)


async def confirm(question: str) -> bool:
    """Ask a yes-or-no question. Returns whether the answer was yes.

    Raises `UsageError` if standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask. To confirm, give --yes.")
    import anyio

    print(printable_lines(f"{question} [y/N] "), end="", file=sys.stderr, flush=True)
    await anyio.wait_readable(sys.stdin)  # waits here, because Ctrl-C would not end readline
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print_notice("Nothing was changed.")
    return False
