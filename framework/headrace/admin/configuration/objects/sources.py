"""Sources of a configuration."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace import store
from headrace.admin.configuration.declared import Declared, Desired
from headrace.admin.configuration.objects import streams
from headrace.admin.configuration.steps import Step, alteration, creation
from headrace.admin.source_settings import Spec, differing, edited, stored_spec
from headrace.admin.sources import change_source, make_source, make_stream, refuse_missing_columns
from headrace.model.errors import InvalidInput, UnknownSource
from headrace.model.settings import settings_of
from headrace.model.sources import SourceInfo
from headrace.model.specs import parsed
from headrace.model.text.masking import HIDDEN, masked
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec
from headrace.store import Executor


async def present(executor: Executor, name: str) -> SourceInfo | None:
    """A source with its secrets, or None if it doesn't exist."""
    try:
        found = await store.source_with_secrets(executor, name)
    except UnknownSource:
        return None
    return found if found.name == name else None


async def step(executor: Executor, desired: Desired, declared: Declared, dsn: str) -> Step | None:
    """The step that makes a source as it is declared, or None. `dsn` is the database of the executor.

    Raises:
        InvalidInput, ConfigurationError: a setting is invalid, or can't be changed.
    """
    (name,) = desired.object
    settings = dict(desired.settings)
    kind, stream = settings.pop("kind"), settings.pop("stream")
    before = await present(executor, name)
    if before is not None:
        return await _change(before, kind, stream, settings, dsn)
    await streams.require_unplaced(executor, "source", name)
    if kind == "webhook" and not declared.has_stream(stream) and await streams.present(executor, stream) is None:
        raise InvalidInput(f"The stream {stream!r} does not exist, and the files don't declare it.", field="stream")
    spec = _new(kind, name, stream, settings)
    if isinstance(spec, PostgresSpec) and spec.mode == "rows":
        await _require_compaction(executor, stream, declared)
    if isinstance(spec, PostgresSpec):
        await refuse_missing_columns(spec.database or dsn, spec)

    async def create(connection: Executor) -> None:
        if isinstance(spec, PostgresSpec):
            await make_stream(connection, spec)
        await make_source(connection, spec)

    given = {"kind": kind, "stream": stream} | {
        setting: _shown(setting, spec.settings()[setting]) for setting in settings
    }
    effect = "The capture starts as soon as a capturing process runs." if kind == "postgres" else ""
    return creation("source", (name,), given, create, effect)


async def _require_compaction(executor: Executor, stream: str, declared: Declared) -> None:
    """Raise `InvalidInput` if a stream that exists, or is declared, keeps every message of a key."""
    before = await streams.present(executor, stream)
    wanted = declared.objects.get(("stream", (stream,)))
    if before is None and wanted is None:
        return  # it is created with the source
    compacts = (
        before.one_message_per_key if before else wanted is not None and wanted.settings.get("one_message_per_key")
    )
    if not compacts:
        raise InvalidInput(
            f"The stream {stream!r} keeps every message, but `mode: rows` needs a stream with `one_message_per_key: true`.",
            field="mode",
        )


def _new(kind: str, name: str, stream: str, settings: dict[str, Any]) -> Spec:
    if kind == "postgres":
        return PostgresSpec(name=name, stream=stream, **parsed(PostgresSpec, settings))
    try:
        return WebhookSpec.stored(name, stream, parsed(WebhookSpec, settings))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"A setting is not valid: {error}.") from None


async def _change(before: SourceInfo, kind: str, stream: str, settings: dict[str, Any], dsn: str) -> Step | None:
    spec = stored_spec(before)
    for setting, old, new in (("kind", before.kind, kind), ("stream", before.stream, stream)):
        if old != new:
            raise InvalidInput(
                f"`{setting}` of the source {before.name!r} is {old!r}, and can't be changed. Choose another name for a new source.",
                field=setting,
            )
    fixed = [one.name for one in settings_of(type(spec)).values() if one.fixed]
    for setting in fixed:
        if setting in settings and settings[setting] == getattr(spec, setting):
            del settings[setting]
    try:
        after = edited(before, settings)
    except InvalidInput as error:
        error.field = error.field or next((one for one in settings if one in fixed), None)
        raise

    if isinstance(after, PostgresSpec) and differing(before, after):
        await refuse_missing_columns(after.database or dsn, after)

    async def change(connection: Executor) -> None:
        locked = await store.lock_source(connection, before.id)
        await change_source(connection, locked, edited(locked, settings))

    return alteration("source", (before.name,), differing(before, after), change)


def _shown(name: str, value: Any) -> Any:
    """A setting without its secrets."""
    if name == "secrets" and value:
        return [HIDDEN] * len(value)
    return masked(value) if name == "database" and value else value
