"""Captured tables of an application, as `App.capture` declares them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from headrace import store
from headrace.admin.source_settings import differing
from headrace.admin.sources import change_source, make_source, make_stream
from headrace.model.conditions import Condition
from headrace.model.errors import ConfigurationError
from headrace.model.sources import SourceExists
from headrace.model.specs import parsed
from headrace.sources.postgres.spec import PostgresSpec

logger = logging.getLogger("headrace")

_FOR_GOOD = ("kind", "stream", "mode", "slot", "publication")
"""Settings that can't be changed for an existing source."""

Where = str | Mapping[str, Any] | Condition | None
Transform = str | Callable[..., Any] | None


def define(
    *, tables: Sequence[str], into: str, name: str | None, transform: Transform, **settings: Any
) -> PostgresSpec:
    """Make the spec of a source from the arguments. Raises `ConfigurationError`."""
    if find_spec("psycopg") is None:
        raise ConfigurationError("Tables are captured by means of psycopg: pip install 'headrace[capture]'.")
    for table in tables:
        if not isinstance(table, str):
            raise ConfigurationError(f"A table is named as text, such as 'public.orders', and not {table!r}.")
    settings["columns"] = dict(settings["columns"] or {})
    return PostgresSpec(
        name=name or into,
        stream=into,
        tables=tuple(tables),
        transform=_named(transform),
        **parsed(PostgresSpec, settings),
    )


def _named(transform: Transform) -> str | None:
    """The module and name of a transform, so that every capturing process can import it."""
    if transform is None or isinstance(transform, str):
        return transform
    place, name = getattr(transform, "__module__", None), getattr(transform, "__qualname__", "<")
    if not callable(transform) or place is None or "<" in name:
        raise ConfigurationError(
            f"transform={transform!r} can't be found by a name: pass a function of a module, decorated with @headrace.transform, or"
            " 'module:function'."
        )
    return f"{place}:{name}"


async def make_streams(database: store.Database, captures: Sequence[PostgresSpec]) -> None:
    """Create the captured streams unless they exist. Raises `ConfigurationError` if one must hold rows but can't."""
    for spec in captures:
        await make_stream(database, spec)


async def declare(database: store.Database, captures: Sequence[PostgresSpec]) -> None:
    """Create the sources, or change existing ones to the declared settings. Changes are logged.

    Raises:
        ConfigurationError: a source exists and differs in a setting that can't be changed.
    """
    for spec in captures:
        try:
            async with database.transaction() as connection:
                await make_stream(connection, spec)
                new = await make_source(connection, spec)
        except SourceExists:
            await _change(database, spec)
        else:
            if new:
                logger.info("source %s: new, captures %s into %s", spec.name, ", ".join(spec.tables), spec.stream)


async def _change(database: store.Database, spec: PostgresSpec) -> None:
    there = await store.source_with_secrets(database, spec.name)
    changed = differing(there, spec)
    for setting in _FOR_GOOD:
        if setting in changed:
            before, now = changed[setting]
            raise ConfigurationError(
                f"The source {spec.name!r} exists, its {setting} is {before!r}, and that can't be changed to {now!r}: remove it with"
                f" `headrace source rm {spec.name}`, or give this one another name=…."
            )
    async with database.transaction() as connection:
        await change_source(connection, there, spec)
    for setting, (before, now) in changed.items():
        logger.info("source %s: %s changed from %r to %r", spec.name, setting, before, now)
