"""Settings of sources of any kind: stored, edited and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.model.durations import seconds
from headrace.model.errors import InvalidInput
from headrace.model.sources import SourceInfo
from headrace.sources.postgres.database.table_names import canonical
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec
from headrace.store.catalog.states import HIDDEN
from headrace.store.database.errors import without_password

Spec = WebhookSpec | PostgresSpec

_KINDS: dict[str, type[WebhookSpec] | type[PostgresSpec]] = {"webhook": WebhookSpec, "postgres": PostgresSpec}
_FIXED = frozenset({"name", "stream", "mode", "slot", "publication"})
"""Settings that can't be edited. With other keys, another stream or another slot, it would be another source."""


def kind_of(spec: Spec) -> str:
    """The kind of source that has these settings."""
    return next(kind for kind, one in _KINDS.items() if isinstance(spec, one))


def stored_spec(there: SourceInfo) -> Spec:
    """The settings of a source that was read with its secrets."""
    return _KINDS[there.kind].stored(there.name, there.stream, there.settings)


def edited(there: SourceInfo, changes: Mapping[str, Any]) -> Spec:
    """The settings of a source, read with its secrets, after the changes.

    Raises:
        InvalidInput: a setting can't be changed, or its new value is invalid.
        ConfigurationError: settings that contradict each other.
    """
    kind = _KINDS[there.kind]
    changeable = [name for name in kind.__struct_fields__ if name not in _FIXED]
    for name in changes:
        if name not in changeable:
            raise InvalidInput(f"{name} of a {there.kind} source can't be changed; these can: {', '.join(changeable)}.")
    settings = {**there.settings, **plain(changes)}
    if isinstance(changes.get("tables"), (list, tuple)) and "columns" not in changes:
        left = {
            canonical(table) for table in changes["tables"]
        }  # drop the columns of tables that are no longer captured
        settings["columns"] = {table: columns for table, columns in settings["columns"].items() if table in left}
    if kind is PostgresSpec:  # it validates every value itself
        return checked_database(PostgresSpec(name=there.name, stream=there.stream, **settings), there)
    try:
        return kind.stored(there.name, there.stream, settings)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"A setting has a value that can't be: {error}.") from error


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to the form of the specs: durations as seconds."""
    found = dict(settings)
    if found.get("heartbeat") is not None:
        found["heartbeat"] = seconds(found["heartbeat"], "heartbeat")
    return found


def checked_database(spec: PostgresSpec, there: SourceInfo | None) -> PostgresSpec:
    """The settings, with the stored password if the database URL was passed with its password hidden.

    Raises:
        InvalidInput: the password is hidden and not known. The stored one is used only for the same URL.
    """
    if spec.database is None or HIDDEN not in spec.database:
        return spec
    known = None if there is None else there.settings.get("database")
    if known and spec.database in (known, without_password(known)):
        return msgspec.structs.replace(spec, database=known)
    raise InvalidInput(
        f"The database URL {spec.database!r} of the source {spec.name!r} has {HIDDEN!r} for its password: write the password."
    )


def differing(there: SourceInfo, spec: Spec) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, {setting: (there, given)}, with secrets hidden. `there` was read with its secrets."""
    if there.kind != kind_of(spec):
        return {"kind": (there.kind, kind_of(spec))}
    old, new = ({"stream": one.stream, **one.settings()} for one in (stored_spec(there), spec))
    return {name: _told(name, value, new[name]) for name, value in old.items() if value != new[name]}


def _told(name: str, old: Any, new: Any) -> tuple[Any, Any]:
    if name == "secrets":
        return HIDDEN, "others"
    if name == "database":
        old, new = (one and without_password(one) for one in (old, new))
        return old, (new if old != new else "the same with another password")
    return old, new
