"""All commands, from the tree of commands of `headrace.cli`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from cyclopts import App

from docsite.reference.markdown import code, plain
from headrace.cli.examples import EXAMPLES
from headrace.cli.exit_codes import DESCRIPTION as EXIT_CODES
from headrace.cli.tree import build

_PARTS = re.compile(r"## .*?\n\n```console\n(?P<usage>.*?)\n```\n\n(?P<body>.*?)(?=\n## |\Z)", re.DOTALL)
"""What cyclopts writes of a command: a heading, its usage, its description with its parameters, its commands."""


@cache
def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            "# All commands\n",
            "What commands have in common is in [the command line](../cli.md). `headrace COMMAND --help` prints the same.\n",
            *(_command(command, path) for path, command in commands()),
            f"## Exit codes\n\n{code(EXIT_CODES)}",
        ]
    )


def commands() -> Iterator[tuple[str, App]]:
    """Yield all commands by their names, such as "consumer add". A group comes before its commands."""
    for name in _names(build()):
        yield from _tree(name, build(called=name)[name])


def _tree(path: str, command: App) -> Iterator[tuple[str, App]]:
    yield path, command
    for name in _names(command):
        yield from _tree(f"{path} {name}", command[name])


def _names(parent: App) -> list[str]:
    return [name for name in parent if not name.startswith("-")]


def _command(command: App, path: str) -> str:
    described = command.generate_docs(output_format="markdown", recursive=False, heading_level=2)
    parts = _PARTS.match(described)
    assert parts is not None, f"cyclopts describes `headrace {path}` in another way than before"
    # Only a usage that the command sets itself has the names of the groups.
    usage = (command.usage or f"headrace {path}{parts['usage'].removeprefix(path.split()[-1])}").removeprefix("Usage: ")
    examples = f"\n{code(EXAMPLES[path], 'sh')}" if path in EXAMPLES else ""
    return f"## headrace {path}\n\n{code(usage)}\n{_parameters(parts['body'])}{examples}"


def _parameters(body: str) -> str:
    """Escape the texts of a description, which are plain text. The names of parameters and bold marks are Markdown."""
    return re.sub(r"^(\* |)(.*)$", lambda line: line[1] + _unless_bold(line[2]), body, flags=re.MULTILINE)


def _unless_bold(line: str) -> str:
    marks = re.split(r"(\*\*.*?\*\*|\*\[.*?\]\*)", line)
    return "".join(mark if index % 2 else plain(mark) for index, mark in enumerate(marks))
