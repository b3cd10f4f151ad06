"""All operations with their doors: the method in Python, the route, the command, and the scope that the route needs."""

from __future__ import annotations

from docsite.reference.markdown import table
from headrace.admin.requests.operations import OPERATIONS

COMMANDS = {
    "pause": "consumer pause",
    "replay": "consumer replay",
    "redrive": "consumer dead-letters redrive",
    "purge": "consumer dead-letters purge",
    "check_source": "source postgres check",
    "start_backfill": "source backfill start",
    "cancel_backfills": "source backfill cancel",
    "verify_source": "source postgres verify",
    "run_schedule": "schedule run",
    "check_database": "database check",
}
"""The commands of operations that have code of their own."""

STREAM, ALL = "the stream", "all streams"


def command_of(name: str) -> str | None:
    """Return the command of an operation, as after `headrace`. None if it has none."""
    command = OPERATIONS[name].command
    return COMMANDS.get(name) if command is None else command.name


def scope_of(name: str) -> tuple[str, str]:
    """Return the scope that the route of an operation needs, and of which streams: `STREAM` or `ALL`."""
    operation = OPERATIONS[name]
    return operation.need, ALL if operation.needs_all_streams else STREAM


def page() -> str:
    """Return the page."""
    rows = []
    for name, operation in OPERATIONS.items():
        command, (scope, of) = command_of(name), scope_of(name)
        called = "" if command is None else f"`headrace {command}`"
        rows.append(
            (operation.summary, f"`{name}`", f"`{operation.method} {operation.path}`", called, f"`{scope}` of {of}")
        )
    return "\n".join(
        [
            "# All operations\n",
            "An operation does something with one object. It has the same effect and refuses the same from Python, over HTTP"
            " and in a terminal. The method is one of `app.admin`, and of `headrace.client.Remote`, which sends it to a server."
            " The scope is that of a [token](../access.md).\n",
            table(("operation", "method", "route", "command", "scope"), rows),
            "A source that captures tables can read more than its stream has, so its operations need a scope for all streams."
            " The arguments are on the pages of the [routes](http.md), the [commands](cli.md) and the"
            " [Python API](python/index.md).\n",
        ]
    )
