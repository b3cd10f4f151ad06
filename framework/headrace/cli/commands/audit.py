"""`headrace audit`: which changes were made, and in whose name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.options.common import JsonOption, LimitOption
from headrace.cli.options.selection import CriteriaOptions
from headrace.cli.output.results import print_cut, print_list
from headrace.model.watching.audit import AuditEntry


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ChangeSelection(CriteriaOptions):
    """Selects changes."""

    stream: Annotated[str | None, Parameter(show_default=False, help="Only changes about this stream.")] = None
    actor: Annotated[
        str | None,
        Parameter(show_default=False, help="Only changes in this name: of a token, or a user such as ann@laptop."),
    ] = None
    action: Annotated[
        str | None,
        Parameter(show_default=False, help="Only these changes, such as consumer.seek, or consumer for all of a kind."),
    ] = None
    since: Annotated[
        str | None,
        Parameter(show_default=False, help="Only changes since this time, or this long ago, such as 1h."),
    ] = None
    until: Annotated[str | None, Parameter(show_default=False, help="Only changes before this time.")] = None


def audit(
    *,
    selection: ChangeSelection = ChangeSelection(),
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List the changes that were made, the newest first.

    Those through a server, in its console, by commands with a database, and by
    code that uses app.admin. They are kept for 90 days, at most 100,000 of them.
    """
    criteria = selection.criteria() | {"limit": limit}
    entries = administer(backend, lambda admin: admin.audit(**criteria))
    print_list(entries, json, _COLUMNS, _row, empty="There are no such changes.")
    if not json:
        print_cut(entries, limit)


_COLUMNS = ("at", "actor", "via", "action", "stream", "object", "details")


def _row(entry: AuditEntry) -> tuple[object, ...]:
    actor = entry.actor or f"({entry.role})"
    return entry.at, actor, entry.via, entry.action, entry.stream, entry.object.name, _summary(entry)


def _summary(entry: AuditEntry) -> str:
    """The details in one line."""
    given = ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in entry.details.items())
    return given if len(given) <= 100 else f"{given[:99]}…"
