"""Settings of sources of any kind: read, edit and compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.errors import InvalidInput
from headrace.model.settings import settings_of
from headrace.model.sources import SourceInfo
from headrace.model.specs import parsed
from headrace.model.text.masking import HIDDEN, masked
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.table_names import canonical
from headrace.sources.webhook import WebhookSpec

Spec = WebhookSpec | PostgresSpec

_KINDS: dict[str, type[WebhookSpec] | type[PostgresSpec]] = {"webhook": WebhookSpec, "postgres": PostgresSpec}


def kind_of(spec: Spec) -> str:
    """Return the kind of source that has these settings."""
    return next(kind for kind, one in _KINDS.items() if isinstance(spec, one))


def stored_spec(source: SourceInfo) -> Spec:
    """Return the settings of a source that was read with its secrets."""
    return _KINDS[source.kind].stored(source.name, source.stream, source.settings)


def edited(source: SourceInfo, changes: Mapping[str, Any]) -> Spec:
    """Return the settings of a source, which was read with its secrets, after the changes.

    Raises:
        InvalidInput: a setting can't be changed, or its new value is invalid.
        ConfigurationError: settings that contradict each other.
    """
    kind = _KINDS[source.kind]
    editable = [name for name, setting in settings_of(kind).items() if not setting.fixed]
    for name in changes:
        if name not in editable:
            raise InvalidInput(
                f"{name} of a {source.kind} source can't be changed. You can change {', '.join(editable)}."
            )
    settings = {**source.settings, **parsed(kind, changes)}
    if HIDDEN in settings.get("secrets", ()):
        settings["secrets"] = _with_hidden(settings["secrets"], source)
    if isinstance(changes.get("tables"), (list, tuple)) and "columns" not in changes:
        tables = {canonical(table) for table in changes["tables"]}  # others are no longer captured
        settings["columns"] = {table: columns for table, columns in settings["columns"].items() if table in tables}
    if kind is PostgresSpec:  # it validates every value itself
        return with_password(PostgresSpec(name=source.name, stream=source.stream, **settings), source)
    try:
        return kind.stored(source.name, source.stream, settings)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"A setting is not valid: {error}.") from error


def with_password(spec: PostgresSpec, source: SourceInfo | None) -> PostgresSpec:
    """Return the settings with the stored password, if the database URL has its password masked.

    Raises:
        InvalidInput: the password is masked and not known. The stored one is used only for the same URL.
    """
    if spec.database is None or HIDDEN not in spec.database:
        return spec
    stored = None if source is None else source.settings.get("database")
    if stored and spec.database in (stored, masked(stored)):
        return msgspec.structs.replace(spec, database=stored)
    raise InvalidInput(
        f"The database URL {spec.database!r} of the source {spec.name!r} has {HIDDEN!r} as its password. Write the password."
    )


def _with_hidden(secrets: Sequence[str], source: SourceInfo) -> list[str]:
    """Return a webhook's secrets with the stored ones in place of `…`. One `…` stands for all of them,
    and as many as there are stand for one each.

    Raises:
        InvalidInput: there are other numbers of `…` and of stored secrets.
    """
    stored = source.settings.get("secrets") or []
    hidden = sum(secret == HIDDEN for secret in secrets)
    if not stored or hidden not in (1, len(stored)):
        raise InvalidInput(
            f"secrets has {HIDDEN!r} {hidden} times, which stands for the secrets of the source {source.name!r}, and it has"
            f" {len(stored)}. Give {HIDDEN!r} once for all of them, or once for each, or write the secrets."
        )
    remaining = iter(stored)
    found: list[str] = []
    for secret in secrets:
        if secret != HIDDEN:
            found.append(secret)
        elif hidden == 1:
            found += stored
        else:
            found.append(next(remaining))
    return found


def differing(source: SourceInfo, spec: Spec) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, {setting: (existing, wanted)}, with secrets masked.

    The source was read with its secrets.
    """
    if source.kind != kind_of(spec):
        return {"kind": (source.kind, kind_of(spec))}
    old, new = ({"stream": one.stream, **one.settings()} for one in (stored_spec(source), spec))
    return {name: _masked(name, value, new[name]) for name, value in old.items() if value != new[name]}


def _masked(name: str, old: Any, new: Any) -> tuple[Any, Any]:
    if name == "secrets":
        return HIDDEN, "others"
    if name == "database":
        old, new = (url and masked(url) for url in (old, new))
        return old, (new if old != new else "the same with another password")
    return old, new
