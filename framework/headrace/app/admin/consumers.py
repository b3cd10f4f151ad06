"""Consumers: see, make, change, move, pause, delete; and what became of messages that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace import store
from headrace.app.admin.base import Base
from headrace.app.admin.given import (
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
from headrace.model.records import (
    BlockedKey,
    ConsumerInfo,
    DeadLetter,
    PeekedMessage,
)
from headrace.model.specs import ConsumerSpec
from headrace.store.database import within

_INFO_LIMIT = 5.0  # seconds to count what is pending; a consumer must be seen even when its condition takes forever


class Consumers(Base):
    """The calls about consumers."""

    async def create_consumer(self, spec: ConsumerSpec) -> bool:
        """Create a consumer; one that exists with these very settings is left as it is, wherever it has got to.

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
        """One consumer. Should its condition take too long, what is pending is not counted (`num_pending_exact` is False)."""
        await self._consumer(stream, name)
        try:
            async with within(self._database, _INFO_LIMIT) as connection:
                return await store.consumer(connection, stream, name)
        except FilterTooSlow:
            return await store.consumer(self._database, stream, name, look=0)

    async def edit_consumer(self, stream: str, name: str, /, **changes: Any) -> ConsumerSpec:
        """Change a consumer's settings, live: its workers go by them from their next lease on.

        Args:
            changes: settings of `ConsumerSpec`, as `@app.consumer` takes them: durations and rates as text, `filter`, `where`; `push` as a `Push`, as
                None, or as a dict of those of its settings that change. Where it begins can't be changed any more: seek instead.

        Returns:
            The settings as they are now. Raises `ConfigurationError` for those that can't be.
        """
        spec, _ = await store.consumer_spec(self._database, await self._consumer(stream, name))
        if isinstance(changes.get("push"), Mapping):
            changes["push"] = pushed(spec.push, changes["push"])
        spec = changed(spec, _with_rate(changes), fixed=("stream", "name", "deliver_policy", "start_seq", "start_time"))
        await store.declare_consumer(self._database, spec)
        return spec

    async def delete_consumer(self, stream: str, name: str, *, force: bool = False) -> None:
        """Delete a consumer, its place and its dead letters; by `force` also if workers are at it.

        Raises:
            InUse: they are.
        """
        await store.delete_consumer(self._database, await self._consumer(stream, name), force=force)

    async def pause(self, stream: str, name: str, until: datetime | None = None) -> None:
        """Give the consumer's workers nothing more until then, or until `resume`; what is in flight goes on.

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
        """End a pause. Workers that wait look at once."""
        await store.resume(self._database, await self._consumer(stream, name))

    async def peek(self, stream: str, name: str, *, limit: int = 10) -> list[PeekedMessage]:
        """What a consumer is at, without touching it: messages in flight, parked, blocked and next, at most `limit` of each."""
        check_limit(limit)
        consumer = await self._consumer(stream, name)
        async with self._bounded(None) as executor:
            return await store.peek(executor, consumer, limit=limit)

    # --- where a consumer is

    async def seek(self, stream: str, name: str, to: int | datetime | str) -> int:
        """Move a consumer: the next message delivered is the first at or above `to`.

        Args:
            to: a seq, a time, "start" or "end". The end is only what commits from now on.

        What was in flight ends, and acks for it change nothing. What was parked, blocked or replayed is forgotten; dead letters stay.

        Returns:
            The new position, below the next message.

        Raises:
            InvalidInput: a seq past the last one, or a time to come.
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
        """Deliver to a consumer again what it has had, as far as this and its own filters match; before anything new.

        Bounds are inclusive. What is in flight, parked, blocked or yet to come is left out. `dry_run` only counts.

        Returns:
            How many.
        """
        selection = selection_of(filter, where, start_seq, end_seq, start_time, end_time)
        consumer = await self._consumer(stream, name)
        async with self._bounded(selection.where) as executor:
            return await store.replay(executor, consumer, selection, dry_run=dry_run)

    # --- blocked keys and dead letters

    async def blocked_keys(self, stream: str, name: str, *, limit: int = 100) -> list[BlockedKey]:
        """The keys that wait for a person: redrive or purge their dead letters."""
        check_limit(limit)
        return await store.blocked_keys(self._database, await self._consumer(stream, name), limit=limit)

    async def dead_letters(
        self, stream: str, name: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        above: int = 0, limit: int = 100,
    ) -> list[DeadLetter]:  # fmt: skip
        """Dead letters that match, with a seq above `above`, in the order of seq, at most `limit`."""
        filters, condition = filters_of(filter), condition_of(where)
        check_limit(limit)
        consumer = await self._consumer(stream, name)
        async with self._bounded(condition) as executor:
            return await store.dead_letters(
                executor, consumer, filters=filters, where=condition, above=above, limit=limit
            )

    async def dead_letter(self, stream: str, name: str, seq: int) -> DeadLetter:
        """One dead letter. Raises `InvalidInput` when there is none of that seq."""
        check_seq("seq", seq)
        found = await store.dead_letters(self._database, await self._consumer(stream, name), above=seq - 1, limit=1)
        if not found or found[0].seq != seq:
            raise InvalidInput(f"There is no dead letter {seq} of the consumer {name!r} of the stream {stream!r}.")
        return found[0]

    async def redrive(
        self, stream: str, name: str, *, seqs: Sequence[int] | None = None, key: str | None = None,
        filter: Filter = None, where: Where = None, dry_run: bool = False,  # noqa: A002
    ) -> int:  # fmt: skip
        """Deliver dead letters again, those of a key in their order, attempts counted from zero. A key that they block goes on.

        They have to match all that is given; when nothing is, it is all of them. One whose message retention has removed stays,
        and isn't counted: publish its data anew if need be. `dry_run` only counts.

        Returns:
            How many.
        """
        return await self._dispose(store.redrive, stream, name, seqs, key, filter, where, dry_run)

    async def purge(
        self, stream: str, name: str, *, seqs: Sequence[int] | None = None, key: str | None = None,
        filter: Filter = None, where: Where = None, dry_run: bool = False,  # noqa: A002
    ) -> int:  # fmt: skip
        """Forget dead letters; which, as for `redrive`. A key that they block goes on after them. Returns how many."""
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
    """The changes with the rate as a number. Who takes it away takes its burst away, too."""
    if "rate_limit" not in changes:
        return changes
    found = rate(changes["rate_limit"])
    return {**({"rate_burst": None} if found is None else {}), **changes, "rate_limit": found}
