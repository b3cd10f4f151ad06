"""Further databases of a configuration: the list that servers read. Databases that a configuration no longer declares
stay in the list."""

from __future__ import annotations

from collections.abc import Mapping

from headrace import store
from headrace.admin.configuration.declared import Database
from headrace.admin.configuration.steps import Change, FieldChange, Step
from headrace.model.errors import InUse
from headrace.store import Executor

_OPENED = "Servers open it within five seconds, as far as they find the URL there, too."


def steps(declared: Mapping[str, Database], present: Mapping[str, str]) -> list[Step]:
    """The steps that make the list of databases as it is declared. `present` has the references by name."""
    return [
        _step(one, present.get(name)) for name, one in sorted(declared.items()) if present.get(name) != one.url_from
    ]


def _step(one: Database, before: str | None) -> Step:
    field = FieldChange("url_from", before, one.url_from, _OPENED)
    if before is None:
        return Step(
            Change(action="create", kind="database", object=(one.name,), fields=(field,)), lambda c: _add(c, one)
        )
    return Step(Change(action="change", kind="database", object=(one.name,), fields=(field,)), lambda c: _edit(c, one))


async def _add(connection: Executor, one: Database) -> None:
    if not await store.add_database(connection, one.name, one.url_from):
        raise _changed(one)


async def _edit(connection: Executor, one: Database) -> None:
    if not await store.edit_database(connection, one.name, one.url_from):
        raise _changed(one)


def _changed(one: Database) -> InUse:
    return InUse(
        f"The database {one.name!r} was added or removed since the plan was made. Nothing was done. Try again."
    )
