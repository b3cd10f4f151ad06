"""Captured tables of an application, as `App.capture` declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from headrace import store
from headrace.admin.source_settings import differing
from headrace.admin.sources import change_source, existing_source, make_source, make_stream, refuse_missing_columns
from headrace.model.conditions import Condition
from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.model.sources import SourceExists
from headrace.model.specs import parsed
from headrace.sources.postgres.spec import PostgresSpec

log = Log("headrace")

_FIXED = ("kind", "stream", "mode", "slot", "shared_slot", "publication")
"""Settings that can't be changed for an existing source."""

Where = str | Mapping[str, Any] | Condition | None
Transform = str | Callable[..., Any] | None


def define(
    *, tables: Sequence[str], into: str, name: str | None, transform: Transform, **settings: Any
) -> PostgresSpec:
    """Make the spec of a source from the arguments. Raises `ConfigurationError`."""
    if find_spec("psycopg") is None:
        raise ConfigurationError(
            "psycopg is not installed. Tables are captured with it. Run pip install 'headrace[capture]'."
        )
    for table in tables:
        if not isinstance(table, str):
            raise ConfigurationError(f"The table {table!r} is not a string. Name it as text, such as 'public.orders'.")
    settings["columns"] = dict(settings["columns"] or {})
    return PostgresSpec(
        name=name or into,
        stream=into,
        tables=tuple(tables),
        transform=_transform_name(transform),
        **parsed(PostgresSpec, settings),
    )


def _transform_name(transform: Transform) -> str | None:
    """The module and name of a transform, so that every capturing process can import it."""
    if transform is None or isinstance(transform, str):
        return transform
    module, name = getattr(transform, "__module__", None), getattr(transform, "__qualname__", "<")
    if not callable(transform) or module is None or "<" in name:
        raise ConfigurationError(
            f"transform={transform!r} can't be imported by name. Pass a function of a module, decorated with @headrace.transform,"
            " or 'module:function'."
        )
    return f"{module}:{name}"


async def make_streams(database: store.Database, captures: Sequence[PostgresSpec]) -> None:
    """Create the captured streams unless they exist. Raises `ConfigurationError` if one must hold rows but can't."""
    for spec in captures:
        await make_stream(database, spec)


async def declare(database: store.Database, captures: Sequence[PostgresSpec]) -> None:
    """Create the sources, or change existing ones to the declared settings. Changes are logged.

    Raises:
        ConfigurationError: a source exists and differs in a setting that can't be changed. Or a new or changed setting
            names a column that its table does not have.
    """
    for spec in captures:
        existing = await existing_source(database, spec.name)
        if existing is None or differing(existing, spec):
            await refuse_missing_columns(spec.database or database.dsn, spec)
        try:
            async with database.transaction() as connection:
                await make_stream(connection, spec)
                new = await make_source(connection, spec)
        except SourceExists:
            await _change(database, spec)
        else:
            if new:
                log.info("source created", source=spec.name, tables=", ".join(spec.tables), stream=spec.stream)


async def _change(database: store.Database, spec: PostgresSpec) -> None:
    existing = await store.source_with_secrets(database, spec.name)
    changed = differing(existing, spec)
    for setting in _FIXED:
        if setting in changed:
            before, now = changed[setting]
            raise ConfigurationError(
                f"The source {spec.name!r} exists with the {setting} {before!r}, which can't be changed to {now!r}. Remove the source"
                f" with `headrace source rm {spec.name}`, or give this one another name=…."
            )
    async with database.transaction() as connection:
        await change_source(connection, existing, spec)
    for setting, (before, now) in changed.items():
        log.info("source setting changed", source=spec.name, setting=setting, before=repr(before), now=repr(now))
