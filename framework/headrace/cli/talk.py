"""What is said to a person: on standard error, since standard output is for data."""

from __future__ import annotations

import sys

from headrace.cli.problems import UsageProblem

NOT_DONE = 1
"""The exit code when a command has not done, or not in full, what it was to do, and nothing is wrong."""


def say(sentence: str) -> None:
    """Say a sentence."""
    print(f"headrace: {sentence}", file=sys.stderr)


def hint(sentence: str) -> None:
    """Say what to do next, to a person who reads the output and not to a script."""
    if sys.stdout.isatty():
        print(sentence, file=sys.stderr)


async def confirmed(question: str) -> bool:
    """Whether a person wants this.

    Raises `UsageProblem` when there is nobody to ask: standard input is no terminal.
    """
    if not sys.stdin.isatty():
        raise UsageProblem(f"{question} There is no terminal to ask on: pass --yes if this is what you want.")
    import anyio

    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    await anyio.wait_readable(sys.stdin)  # and not in readline, which Ctrl-C would not end
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("Nothing was done.")
    return False


def count(number: int, noun: str) -> str:
    """So many of a thing, in words: `1 message`, `1,234 messages`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
