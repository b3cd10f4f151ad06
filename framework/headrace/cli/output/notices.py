"""Messages to people, printed on standard error because standard output is for data."""

from __future__ import annotations

import sys

from headrace.cli.problems import UsageProblem

NOT_DONE = 1
"""The exit code when a command did not do all that it was to do, and there was no error."""


def say(sentence: str) -> None:
    """Print a sentence on standard error."""
    print(f"headrace: {sentence}", file=sys.stderr)


def hint(sentence: str) -> None:
    """Print what to do next, if a person reads the output. A script gets nothing."""
    if sys.stdout.isatty():
        print(sentence, file=sys.stderr)


async def confirmed(question: str) -> bool:
    """Ask a yes-or-no question. Returns whether the answer was yes.

    Raises `UsageProblem` if standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageProblem(f"{question} There is no terminal to ask on: pass --yes if this is what you want.")
    import anyio

    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    await anyio.wait_readable(sys.stdin)  # waits here, because Ctrl-C would not end readline
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("Nothing was done.")
    return False


def count(number: int, noun: str) -> str:
    """A count of things in words: `1 message`, `1,234 messages`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
