"""`headrace context add|use|ls|rm`: names for servers and databases, and which of them commands use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.options import contexts
from headrace.cli.options.common import JsonOption, flag, print_json
from headrace.cli.options.contexts import Context
from headrace.cli.problems import NoInput, UsageProblem
from headrace.client.address import Server, shown

ContextName = Annotated[str, Parameter(help="The context's name.")]

_HIDDEN = "…"


def add(
    name: ContextName,
    /,
    *,
    server: Annotated[str | None, Parameter(show_default=False, help="A server's URL.")] = None,
    token: Annotated[
        str | None, Parameter(show_default=False, help="The token for it, which other users may see while this runs.")
    ] = None,
    token_file: Annotated[
        str | None,
        Parameter(allow_leading_hyphen=True, show_default=False, help="A file with the token; - is standard input."),
    ] = None,
    ca_file: Annotated[
        str | None, Parameter(show_default=False, help="A file in PEM with the authorities to trust for https.")
    ] = None,
    database: Annotated[str | None, Parameter(show_default=False, help="Instead of a server a Postgres URL.")] = None,
) -> None:
    """Give a server or a database a name.

    The token is stored in a file that only you can read. To use the context,
    see `headrace context use`.
    """
    if (server is None) == (database is None):
        raise UsageProblem("Give --server or --database: one of them.")
    if token is not None and token_file is not None:
        raise UsageProblem("Give --token or --token-file, and not both.")
    if database is not None and (token or token_file or ca_file):
        raise UsageProblem("A database has no token and no --ca-file: these are for a server.")
    if token_file is not None:
        token = _token(token_file)
    if server is not None:
        authorities = None if ca_file is None else str(Path(ca_file).absolute())
        Server(server, token, authorities)  # raises if a value is invalid
        made = Context(server=server, token=token, ca_file=authorities)
    else:
        made = Context(database=database)
    found = contexts.read()
    found.add(name, made)
    contexts.write(found)
    print(f"Added the context {name!r}; `headrace context use {name}` makes it count.")


def use(
    name: Annotated[str | None, Parameter(show_default=False, help="The context's name.")] = None,
    /,
    *,
    none: Annotated[bool, flag("No context: the project's database again, or the embedded Postgres.")] = False,
) -> None:
    """Use a context for all commands that don't name a server or a database."""
    if (name is None) != none:
        raise UsageProblem("Write a context's name, or --none.")
    found = contexts.read()
    found.use(name)
    contexts.write(found)
    print("No context is in use." if name is None else f"The context {name!r} is in use.")


def ls(*, json: JsonOption = False) -> None:
    """List the contexts, without their tokens."""
    found = contexts.read()
    rows = [(name, one, name == found.current) for name, one in sorted(found.contexts.items())]
    if json:
        print_json(
            [
                {"name": name, "current": current, "server": one.server, "token": one.token and _HIDDEN,
                 "ca_file": one.ca_file, "database": one.database and shown(one.database)}
                for name, one, current in rows
            ]
        )  # fmt: skip
    elif not rows:
        print("headrace: There is no context yet: `headrace context add` makes one.", file=sys.stderr)
    else:
        from headrace.cli.output.tables import print_table

        print_table(
            ("", "context", "server or database", "token"),
            (("*" if current else "", name, shown(one.server or one.database or ""), _HIDDEN if one.token else "")
             for name, one, current in rows),
        )  # fmt: skip


def rm(name: ContextName, /) -> None:
    """Remove a context and its token."""
    found = contexts.read()
    found.remove(name)
    contexts.write(found)
    print(f"Removed the context {name!r}.")


def _token(file: str) -> str:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise NoInput(f"The token can't be read from {file!r}: {error}.") from error
    if not text.strip():
        raise NoInput(f"There is no token in {file!r}.")
    return text.strip()
