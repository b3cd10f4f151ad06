"""Streams of a configuration."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace import store
from headrace.admin.configuration.declared import Desired
from headrace.admin.configuration.fields import written
from headrace.admin.configuration.steps import Step, alteration, creation
from headrace.admin.validation import changed
from headrace.model.errors import InvalidInput, UnknownStream
from headrace.model.specs import StreamSpec
from headrace.model.text.names import NAME
from headrace.store import Executor, PlaceKind


async def present(executor: Executor, name: str) -> StreamSpec | None:
    """The settings of a stream, or None if it doesn't exist."""
    try:
        info = await store.stream(executor, name)
    except UnknownStream:
        return None
    return StreamSpec(**{setting: getattr(info, setting) for setting in StreamSpec.__struct_fields__})


async def step(executor: Executor, desired: Desired) -> Step | None:
    """The step that makes a stream as it is declared, or None.

    Raises:
        InvalidInput, ConfigurationError: a setting is invalid, or can't be changed.
    """
    (name,) = desired.object
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"The stream name {name!r:.80} can't be used. Take 1 to 48 lower-case letters, digits, '-' and '_', the first one a letter"
            " or digit."
        )
    before = await present(executor, name)
    after = changed(before or StreamSpec(name=name), desired.settings)
    if before is None:
        await require_unplaced(executor, "stream", name)
        given = {setting: written(getattr(after, setting)) for setting in desired.settings}
        return creation("stream", desired.object, given, lambda connection: _create(connection, after))
    if after.one_message_per_key != before.one_message_per_key:
        raise InvalidInput(
            f"`one_message_per_key` of the stream {name!r} is {written(before.one_message_per_key)!r}, and can't be changed after the"
            " creation. Choose another name for a new stream.",
            field="one_message_per_key",
        )
    return alteration(
        "stream", desired.object, _differing(before, after), lambda connection: store.edit_stream(connection, after)
    )


async def require_unplaced(executor: Executor, kind: PlaceKind, name: str) -> None:
    """Raise `InvalidInput` if a server keeps the stream or source of this name in a further database."""
    place = await store.place_of(executor, kind, name)
    if place is not None:
        raise InvalidInput(
            f"The {kind} {name!r} lives in the database {place.database!r}, as servers know it. Choose another name, or try again if it is new."
        )


async def _create(connection: Executor, spec: StreamSpec) -> None:
    await store.create_stream(connection, spec)


def _differing(before: StreamSpec, after: StreamSpec) -> dict[str, tuple[Any, Any]]:
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    return {name: (written(value), written(new[name])) for name, value in old.items() if value != new[name]}
