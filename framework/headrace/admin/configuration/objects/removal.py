"""Identifies and deletes objects of any kind, for `prune`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headrace import store
from headrace.admin.admin import Admin
from headrace.admin.configuration.objects.grants import right_of
from headrace.admin.configuration.steps import Change, recorded
from headrace.model.errors import UnknownConsumer, UnknownSource, UnknownStream
from headrace.model.watching.audit import Actor
from headrace.store import Database, Executor, Kind, Managed

ORDER: tuple[Kind, ...] = ("grant", "token", "source", "consumer", "stream")
"""The order of deletions: what refers to an object goes before it."""

_GONE = (UnknownStream, UnknownConsumer, UnknownSource)


async def identity(executor: Executor, kind: Kind, names: tuple[str, ...]) -> str | None:
    """The id of an object, or None if it doesn't exist. A later object of the same name has another id."""
    try:
        return await _identity(executor, kind, names)
    except _GONE:
        return None


async def _identity(executor: Executor, kind: Kind, names: tuple[str, ...]) -> str | None:
    if kind == "stream":
        return (await store.stream(executor, names[0])).id
    if kind == "consumer":
        return (await store.consumer(executor, *names, look=0)).id
    if kind == "source":
        return (await store.source(executor, names[0])).id
    if kind == "token":
        token = await store.token_named(executor, names[0])
        return None if token is None or token.revoked_at is not None else token.id
    right = right_of(names)
    if not await store.has_right(executor, right):
        return None
    return "" if right.stream is None else (await store.stream(executor, right.stream)).id


async def deletion(executor: Executor, one: Managed) -> Change:
    """The change that deletes an object, which exists, and what would be lost."""
    effect, guarded = await _loss(executor, one)
    return Change(action="delete", kind=one.kind, object=one.object, effect=effect, destructive=True, guarded=guarded)


async def _loss(executor: Executor, one: Managed) -> tuple[str, str | None]:
    """The effect of the deletion, and the losses that need a separate permission."""
    if one.kind == "stream":
        stream = await store.stream(executor, one.object[0])
        held = [
            f"{count:,} {what}{'s' * (count != 1)}"
            for count, what in (
                (stream.messages, "message"),
                (stream.scheduled, "scheduled message"),
                (stream.consumers, "consumer"),
            )
            if count
        ]
        return "The stream is deleted with all that it has.", f"It has {' and '.join(held)}." if held else None
    if one.kind == "consumer":
        consumer = await store.consumer(executor, *one.object, look=0)
        kept = consumer.position or consumer.dead_letters
        guarded = (
            f"It has the position {consumer.position:,} and {consumer.dead_letters:,} dead letters." if kept else None
        )
        return "Its position and its dead letters are deleted.", guarded
    if one.kind == "source":
        source = await store.source(executor, one.object[0])
        captured = source.capture is not None and source.capture.position is not None
        guarded = "It has captured changes, and its position is lost with its replication slot." if captured else None
        return "Deliveries to it are then refused. Published messages stay.", guarded
    if one.kind == "token":
        return "The token is revoked within two seconds, and its name can't be used again.", None
    return "The role's next call that needs it fails.", None


async def delete(database: Database, one: Managed, actor: Actor) -> None:
    """Delete an object, in a separate transaction. One that was deleted meanwhile is no error.

    Raises:
        InUse: workers use it.
    """
    with suppress(*_GONE):
        await _delete(database, one, actor)


async def _delete(database: Database, one: Managed, actor: Actor) -> None:
    admin: Any = Admin(database).acting_as(actor)
    if one.kind == "stream":
        await admin.delete_stream(one.object[0])
    elif one.kind == "consumer":
        await admin.delete_consumer(*one.object)
    elif one.kind == "source":
        await admin.delete_source(one.identity)
    elif one.kind == "token":
        await admin.revoke_token(one.identity)
    else:
        async with database.transaction() as connection:
            await store.change_grants(connection, [], [right_of(one.object)])
            await store.record_change(
                connection, actor, recorded(Change(action="delete", kind="grant", object=one.object))
            )
