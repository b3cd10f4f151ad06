"""Consumers: read, create, edit, seek, replay, pause, delete, and their dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import (
    Filter,
    Where,
    changed,
    check_limit,
    check_seq,
    condition_of,
    filters_of,
    pushed,
    refuse,
    selection_of,
    utc,
)
from headrace.model.durations import rate
from headrace.model.errors import FilterTooSlow, InvalidInput
from headrace.model.keys import check_key
from headrace.model.records import BlockedKey, ConsumerInfo, DeadLetter, PeekedMessage
from headrace.model.specs import ConsumerSpec
from headrace.store.database.pool import within

_INFO_LIMIT = 5.0  # seconds to count pending messages, so that a slow condition doesn't hide the consumer


class Consumers(Base):
    """The calls about consumers."""

    async def create_consumer(self, spec: ConsumerSpec) -> bool:
        """Create a consumer. An existing one with the same settings keeps its position.

        Returns:
            Whether it is new.

        Raises:
            InvalidInput: it exists with other settings.
        """
        async with self._database.transaction() as connection:
            declared = await store.declare_consumer(connection, spec)
            if not declared.new:
                refuse(declared.changed, f"The consumer {spec.name!r} of the stream {spec.stream!r}")
        return declared.new

    async def consumers(self, stream: str | None = None) -> list[ConsumerInfo]:
        """The consumers of a stream, or of all streams, by name."""
        if stream is not None:
            await store.stream(self._database, stream)
        try:
            async with within(self._database, _INFO_LIMIT) as connection:
                return await store.consumers(connection, stream)
        except FilterTooSlow:
            return await store.consumers(self._database, stream, look=0)

    async def consumer(self, stream: str, name: str) -> ConsumerInfo:
        """One consumer. If its condition is slow, pending messages are not counted (`num_pending_exact` is False)."""
        await self._consumer(stream, name)
        try:
            async with within(self._database, _INFO_LIMIT) as connection:
                return await store.consumer(connection, stream, name)
        except FilterTooSlow:
            return await store.consumer(self._database, stream, name, look=0)

    async def edit_consumer(self, stream: str, name: str, /, **changes: Any) -> ConsumerSpec:
        """Change a consumer's settings. Its running workers apply them from their next lease on.

        Args:
            changes: settings of `ConsumerSpec`, as `@app.consumer` takes them: durations and rates
                as text, `filter`, `where`, and `push` as a `Push`, as None, or as a dict of its
                settings that change. The starting position can't be changed. Use `seek` instead.

        Returns:
            The settings as they are now. Raises `ConfigurationError` for invalid ones.
        """
        spec, _ = await store.consumer_spec(self._database, await self._consumer(stream, name))
        if isinstance(changes.get("push"), Mapping):
            changes["push"] = pushed(spec.push, changes["push"])
        spec = changed(spec, _with_rate(changes), fixed=("stream", "name", "deliver_policy", "start_seq", "start_time"))
        await store.declare_consumer(self._database, spec)
        return spec

    async def delete_consumer(self, stream: str, name: str, *, force: bool = False) -> None:
        """Delete a consumer, its position and its dead letters. With `force`, also while workers work on it.

        Raises:
            InUse: workers work on it.
        """
        await store.delete_consumer(self._database, await self._consumer(stream, name), force=force)

    async def pause(self, stream: str, name: str, until: datetime | None = None) -> None:
        """Stop leasing to the consumer's workers until that time, or until `resume`. Messages in flight go on.

        Raises:
            InvalidInput: that time has passed.
        """
        until = utc(until)
        if until is not None and until <= datetime.now(UTC):
            raise InvalidInput(
                f"until={until} has passed: take a time to come, or none, for until somebody resumes it."
            )
        await store.pause(self._database, await self._consumer(stream, name), until)

    async def resume(self, stream: str, name: str) -> None:
        """End a pause. Waiting workers lease at once."""
        await store.resume(self._database, await self._consumer(stream, name))

    async def peek(self, stream: str, name: str, *, limit: int = 10) -> list[PeekedMessage]:
        """Messages in flight, parked, blocked and next, at most `limit` of each. Changes nothing."""
        check_limit(limit)
        consumer = await self._consumer(stream, name)
        async with self._bounded(None) as executor:
            return await store.peek(executor, consumer, limit=limit)

    # --- the position of a consumer

    async def seek(self, stream: str, name: str, to: int | datetime | str) -> int:
        """Move a consumer. The next message delivered is the first at or above `to`.

        Args:
            to: a seq, a time, "start" or "end". After "end", only later commits are delivered.

        Leases in flight end, and acks for them change nothing. Parked, blocked and replayed
        messages are forgotten. Dead letters stay.

        Returns:
            The new position, below the next message.

        Raises:
            InvalidInput: a seq after the last one, or a time in the future.
        """
        if to == "start" or to == "end":
            return await store.seek(self._database, await self._consumer(stream, name), 0 if to == "start" else None)
        if isinstance(to, datetime):
            return await store.seek_to(self._database, await self._consumer(stream, name), time=utc(to))
        if isinstance(to, int) and not isinstance(to, bool):
            check_seq("to", to)
            return await store.seek_to(self._database, await self._consumer(stream, name), seq=to)
        raise InvalidInput(f"Can't seek to {to!r}: give a seq, a datetime, 'start' or 'end'.")

    async def replay(
        self, stream: str, name: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        start_seq: int | None = None, end_seq: int | None = None,
        start_time: datetime | None = None, end_time: datetime | None = None, dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Deliver past messages to a consumer again, if they match this and its own filters, before any new ones.

        Bounds are inclusive. Messages in flight, parked, blocked or not delivered yet are left out.
        `dry_run` only counts.

        Returns:
            How many.
        """
        selection = selection_of(filter, where, start_seq, end_seq, start_time, end_time)
        consumer = await self._consumer(stream, name)
        async with self._bounded(selection.where) as executor:
            return await store.replay(executor, consumer, selection, dry_run=dry_run)

    # --- blocked keys and dead letters

    async def blocked_keys(self, stream: str, name: str, *, limit: int = 100) -> list[BlockedKey]:
        """The keys that wait for you to redrive or purge their dead letters."""
        check_limit(limit)
        return await store.blocked_keys(self._database, await self._consumer(stream, name), limit=limit)

    async def dead_letters(
        self, stream: str, name: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        above: int = 0, limit: int = 100,
    ) -> list[DeadLetter]:  # fmt: skip
        """Matching dead letters with a seq above `above`, in the order of seq, at most `limit`."""
        filters, condition = filters_of(filter), condition_of(where)
        check_limit(limit)
        consumer = await self._consumer(stream, name)
        async with self._bounded(condition) as executor:
            return await store.dead_letters(
                executor, consumer, filters=filters, where=condition, above=above, limit=limit
            )

    async def dead_letter(self, stream: str, name: str, seq: int) -> DeadLetter:
        """One dead letter. Raises `InvalidInput` when there is none with that seq."""
        check_seq("seq", seq)
        found = await store.dead_letters(self._database, await self._consumer(stream, name), above=seq - 1, limit=1)
        if not found or found[0].seq != seq:
            raise InvalidInput(f"There is no dead letter {seq} of the consumer {name!r} of the stream {stream!r}.")
        return found[0]

    async def redrive(
        self, stream: str, name: str, *, seqs: Sequence[int] | None = None, key: str | None = None,
        filter: Filter = None, where: Where = None, dry_run: bool = False,  # noqa: A002
    ) -> int:  # fmt: skip
        """Deliver dead letters again, those of a key in order, with attempts counted from zero. It unblocks their keys.

        A dead letter must match all arguments. Without arguments, all match. If retention has
        removed its message, a dead letter stays and is not counted. Publish its data again if
        needed. `dry_run` only counts.

        Returns:
            How many.
        """
        return await self._dispose(store.redrive, stream, name, seqs, key, filter, where, dry_run)

    async def purge(
        self, stream: str, name: str, *, seqs: Sequence[int] | None = None, key: str | None = None,
        filter: Filter = None, where: Where = None, dry_run: bool = False,  # noqa: A002
    ) -> int:  # fmt: skip
        """Delete dead letters, selected as for `redrive`. It unblocks their keys. Returns how many."""
        return await self._dispose(store.discard, stream, name, seqs, key, filter, where, dry_run)

    async def _dispose(
        self, verb: Any, stream: str, name: str, seqs: Sequence[int] | None, key: str | None, filter: Filter,  # noqa: A002
        where: Where, dry_run: bool,
    ) -> int:  # fmt: skip
        filters, condition = filters_of(filter), condition_of(where)
        if key is not None:
            check_key(key)
        for seq in seqs or ():
            check_seq("seqs", seq)
        consumer = await self._consumer(stream, name)
        async with self._bounded(condition) as executor:
            count: int = await verb(
                executor, consumer, seqs, key=key, filters=filters, where=condition, dry_run=dry_run
            )
        return count


def _with_rate(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes, with the rate as a number. Removing the rate removes its burst, too."""
    if "rate_limit" not in changes:
        return changes
    found = rate(changes["rate_limit"])
    return {**({"rate_burst": None} if found is None else {}), **changes, "rate_limit": found}
