"""`headrace context add|use|ls|rm`: names for servers and databases, and which of them commands use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.connection import contexts
from headrace.cli.connection.contexts import Context
from headrace.cli.errors import UnreadableInput, UsageError
from headrace.cli.options.common import JsonOption, flag
from headrace.cli.output.json_output import print_json
from headrace.cli.output.stderr import print_notice
from headrace.client.address import Server
from headrace.model.text.masking import HIDDEN, masked

ContextName = Annotated[str, Parameter(help="The context's name.")]


def add(
    name: ContextName,
    /,
    *,
    server: Annotated[str | None, Parameter(show_default=False, help="The URL of a server.")] = None,
    token: Annotated[
        str | None,
        Parameter(show_default=False, help="The token for the server. Other users may see it while the command runs."),
    ] = None,
    token_file: Annotated[
        str | None,
        Parameter(allow_leading_hyphen=True, show_default=False, help="A file with the token; - is standard input."),
    ] = None,
    ca_file: Annotated[
        str | None,
        Parameter(show_default=False, help="A PEM file with the certificate authorities to trust for https."),
    ] = None,
    database: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="A Postgres URL, instead of a server. Other users of the machine can see a password in it while the command runs.",
        ),
    ] = None,
) -> None:
    """Add a context: a name for a server or a database.

    The token is stored in a file that only you can read. To use the context,
    see `headrace context use`.
    """
    if (server is None) == (database is None):
        raise UsageError("Give either --server or --database.")
    if token is not None and token_file is not None:
        raise UsageError("Give either --token or --token-file, not both.")
    if database is not None and (token or token_file or ca_file):
        raise UsageError("--token, --token-file and --ca-file need --server. Leave them out for a database.")
    if token_file is not None:
        token = _token(token_file)
    if server is not None:
        authorities = None if ca_file is None else str(Path(ca_file).absolute())
        Server(server, token, authorities)  # raises if a value is invalid
        context = Context(server=server, token=token, ca_file=authorities)
    else:
        context = Context(database=database)
    stored = contexts.read()
    stored.add(name, context)
    contexts.write(stored)
    print(f"Added the context {name!r}. To use it: `headrace context use {name}`")


def use(
    name: Annotated[str | None, Parameter(show_default=False, help="The context's name.")] = None,
    /,
    *,
    none: Annotated[bool, flag("Use no context, but what commands use without one.")] = False,
) -> None:
    """Select the context for commands that don't name a server or a database."""
    if (name is None) != none:
        raise UsageError("Give the name of a context, or --none.")
    stored = contexts.read()
    stored.use(name)
    contexts.write(stored)
    print("No context is in use." if name is None else f"The context {name!r} is in use.")


def ls(*, json: JsonOption = False) -> None:
    """List the contexts, without their tokens."""
    stored = contexts.read()
    rows = [(name, one, name == stored.current) for name, one in sorted(stored.contexts.items())]
    if json:
        print_json([_shown(name, one, current) for name, one, current in rows])
    elif not rows:
        print_notice("There are no contexts. Add one with `headrace context add`.")
    else:
        from headrace.cli.output.tables import print_table

        columns = ("", "context", "server or database", "token")
        print_table(columns, (_row(name, one, current) for name, one, current in rows))


def _row(name: str, one: Context, current: bool) -> tuple[str, ...]:
    return "*" if current else "", name, masked(one.server or one.database or ""), HIDDEN if one.token else ""


def _shown(name: str, one: Context, current: bool) -> dict[str, object]:
    token, database = one.token and HIDDEN, one.database and masked(one.database)
    server = {"server": one.server, "token": token, "ca_file": one.ca_file}
    return {"name": name, "current": current, **server, "database": database}


def rm(name: ContextName, /) -> None:
    """Remove a context and its token."""
    stored = contexts.read()
    stored.remove(name)
    contexts.write(stored)
    print(f"Removed the context {name!r}.")


def _token(file: str) -> str:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UnreadableInput(f"The file {file!r} with the token can't be read: {error}.") from error
    if not text.strip():
        raise UnreadableInput(f"The file {file!r} contains no token.")
    return text.strip()
