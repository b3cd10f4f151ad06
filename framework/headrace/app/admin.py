"""See and mend streams and consumers: what an operator does, from Python and from the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import anyio

from headrace import store
from headrace.app.given import (
    MOST,
    Filter,
    Where,
    changed,
    check_limit,
    check_seq,
    condition_of,
    filters_of,
    parsed_ack_id,
    refuse,
    refuse_changes,
    selection_of,
    utc,
)
from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.durations import Duration, seconds
from headrace.model.errors import FilterTooSlow, InvalidInput, UnknownConsumer
from headrace.model.keys import check_key
from headrace.model.outcomes import RELEASE, Failure, Settlement
from headrace.model.records import (
    Batch,
    BlockedKey,
    ConsumerInfo,
    DeadLetter,
    PeekedMessage,
    Received,
    StoredMessage,
    StreamInfo,
)
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.store.database import within
from headrace.store.peek import decoded

__all__ = ["MOST", "Admin"]

_INFO_LIMIT = 5.0  # seconds to count what is pending; a consumer must be seen even when its condition takes forever
_POLL = 0.1
_PATIENCE = 1.0  # seconds to read on while nothing matches, whoever waits for it or not


class Admin:
    """Streams, consumers and messages, to be seen and mended. Get it as `app.admin`.

    Args:
        database: an open one.
        judging: seconds that a call may take to judge messages by a condition. A regular expression may take forever on an
            unlucky text; then the call raises `FilterTooSlow`, and has changed nothing.

    Every method raises `UnknownStream` and `UnknownConsumer` for what isn't there, `InvalidInput` for what can't be, and
    `StoreUnavailable`. `filter` is one key filter or several; `where` is a condition on the content: text, its JSON, or one
    made with `field`. Times without a zone are taken as UTC.
    """

    def __init__(self, database: store.Database, *, judging: float = 30.0) -> None:
        self._database = database
        self._judging = judging

    # --- streams

    async def streams(self) -> list[StreamInfo]:
        """All streams, by name."""
        return await store.streams(self._database)

    async def stream(self, name: str) -> StreamInfo:
        """One stream."""
        return await store.stream(self._database, name)

    async def create_stream(self, spec: StreamSpec | str) -> None:
        """Create a stream; one that exists with these very settings is left as it is.

        Raises:
            InvalidInput: it exists with other settings, or the name can't be.
        """
        spec = StreamSpec(name=spec) if isinstance(spec, str) else spec
        await store.create_stream(self._database, spec)
        refuse_changes(_stream_spec(await self.stream(spec.name)), spec, f"The stream {spec.name!r}")

    async def edit_stream(self, name: str, /, **changes: Any) -> StreamSpec:
        """Change what a stream keeps. `changes` are settings of `StreamSpec`; durations may be text such as "30d".

        Returns:
            The settings as they are now. Raises `ConfigurationError` for those that contradict each other.
        """
        spec = changed(_stream_spec(await self.stream(name)), changes, fixed=("name",))
        await store.edit_stream(self._database, spec)
        return spec

    async def delete_stream(self, name: str, *, force: bool = False) -> None:
        """Delete a stream with its messages and its consumers; by `force` also if workers are at one of these.

        Raises:
            InUse: they are; or a publisher keeps its transaction open.
        """
        await store.delete_stream(self._database, name, force=force)

    # --- messages

    async def messages(
        self, stream: str, *, filter: Filter = None, where: Where = None,  # noqa: A002 - the word of the field
        start_seq: int | None = None, limit: int = 10, newest: bool = False,
    ) -> list[StoredMessage]:  # fmt: skip
        """Messages of a stream, in the order of seq: the first ones from `start_seq` on, or the `newest`; at most `limit`."""
        filters, condition = filters_of(filter), condition_of(where)
        check_seq("start_seq", start_seq)
        check_limit(limit)
        async with self._bounded(condition) as executor:
            return await store.messages(
                executor, stream, filters=filters, where=condition, start_seq=start_seq, limit=limit, newest=newest
            )

    async def message(self, stream: str, key: str) -> StoredMessage | None:
        """The latest message of a key; None if there is none. Without `one_message_per_key` it is sought from the end back."""
        check_key(key)
        async with self._bounded(None) as executor:
            return await store.latest(executor, stream, key)

    async def republish(
        self, stream: str, target: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        start_seq: int | None = None, end_seq: int | None = None,
        start_time: datetime | None = None, end_time: datetime | None = None, dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Publish messages of a stream to another one, or to itself, in their order; all of them or none.

        They are new messages there, with new seqs and the time of now. Bounds are inclusive. `dry_run` only counts what matches.

        Returns:
            How many were published.
        """
        selection = selection_of(filter, where, start_seq, end_seq, start_time, end_time)
        async with self._bounded(selection.where) as executor:
            return await store.republish(executor, stream, target, selection, dry_run=dry_run)

    # --- consumers

    async def create_consumer(self, spec: ConsumerSpec) -> None:
        """Create a consumer; one that exists with these very settings is left as it is, wherever it has got to.

        Raises:
            InvalidInput: it exists with other settings.
        """
        async with self._database.transaction() as connection:
            declared = await store.declare_consumer(connection, spec)
            if not declared.new:
                refuse(declared.changed, f"The consumer {spec.name!r} of the stream {spec.stream!r}")

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
            changes: settings of `ConsumerSpec`, as `@app.consumer` takes them: durations as text, `filter`, `where`. Where it
                begins can't be changed any more: seek instead.

        Returns:
            The settings as they are now. Raises `ConfigurationError` for those that can't be.
        """
        spec, _ = await store.consumer_spec(self._database, await self._consumer(stream, name))
        spec = changed(spec, changes, fixed=("stream", "name", "deliver_policy", "start_seq", "start_time"))
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

    # --- receive, ack, nack

    async def receive(self, stream: str, name: str, *, limit: int = 1, wait: float = 0.0) -> list[Received]:
        """Lease messages for the consumer's `ack_wait`, to be acked or nacked one by one.

        They belong to nobody who has others, so of an ordered consumer there is at most one of each key.

        Args:
            limit: at most so many.
            wait: seconds to wait for the first one.
        """
        check_limit(limit)
        if not 0 <= wait <= 3600:
            raise InvalidInput(f"wait={wait} must be from 0 to 3,600 seconds.")
        consumer = await self._consumer(stream, name)
        spec, _ = await store.consumer_spec(self._database, consumer)
        deadline = anyio.current_time() + wait
        while True:
            found = await self._receive(consumer, spec, limit)
            left = deadline - anyio.current_time()
            if found or left <= 0:
                return found
            await anyio.sleep(min(left, _POLL))

    async def _receive(self, consumer: int, spec: ConsumerSpec, limit: int) -> list[Received]:
        found: list[Received] = []
        patience = anyio.current_time() + _PATIENCE
        while len(found) < limit:
            batch = await self._lease(consumer, spec, limit - len(found))
            heads, surplus = _heads(batch) if spec.ordered else (list(range(len(batch.seqs))), [])
            if surplus and batch.lease_id is not None:
                leases: list[int] = [batch.lease_id] * len(surplus)
                settlement = Settlement(leases=leases, seqs=surplus, failures=[RELEASE] * len(surplus))
                await store.settle(self._database, consumer, settlement)
            found += [_received(batch, place) for place in heads]
            if not (surplus or batch.more) or (not heads and (found or anyio.current_time() > patience)):
                break
        return found

    async def _lease(self, consumer: int, spec: ConsumerSpec, limit: int) -> Batch:
        """To another owner each time, to whom the keys are busy that have been found before."""
        judging = None if spec.where is None else self._judging
        try:
            return await store.lease(self._database, consumer, uuid4(), limit, judging=judging)
        except FilterTooSlow as error:
            raise self._too_slow(spec.where) from error.__cause__

    async def ack(self, stream: str, name: str, ack_ids: Sequence[str]) -> list[str]:
        """Settle messages as done. Returns the ids that changed nothing, since their lease was lost."""
        return await self._settle(stream, name, ack_ids, None)

    async def nack(
        self, stream: str, name: str, ack_ids: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[str]:
        """Give messages back as failed: they come again after `delay`, at once by default; the attempt counts.

        Returns:
            The ids that changed nothing, since their lease was lost.
        """
        pause = None if delay is None else seconds(delay, "delay")
        return await self._settle(stream, name, ack_ids, Failure("retry", pause, error))

    async def _settle(self, stream: str, name: str, ack_ids: Sequence[str], failure: Failure | None) -> list[str]:
        given = {parsed_ack_id(ack_id): ack_id for ack_id in ack_ids}
        consumer = await self._consumer(stream, name)
        settlement = Settlement(
            leases=[lease for lease, _ in given], seqs=[seq for _, seq in given], failures=[failure] * len(given)
        )
        lost = await store.settle(self._database, consumer, settlement)
        return [given[one.lease_id, one.seq] for one in lost if one.seq is not None]

    # --- helpers

    async def _consumer(self, stream: str, name: str) -> int:
        try:
            return await store.consumer_id(self._database, stream, name)
        except UnknownConsumer:
            await store.stream(self._database, stream)  # says so when it is the stream that isn't there
            raise

    @asynccontextmanager
    async def _bounded(self, where: Condition | None) -> AsyncIterator[store.Executor]:
        """Where messages are judged: in a transaction that doesn't take forever."""
        try:
            async with within(self._database, self._judging) as connection:
                yield _Patient(connection, self._judging + 10)
        except FilterTooSlow as error:
            raise self._too_slow(where) from error.__cause__

    def _too_slow(self, where: Condition | None) -> FilterTooSlow:
        what = "Looking through the messages" if where is None else f"The condition {conditions.describe(where)!r}"
        return FilterTooSlow(
            f"{what} took longer than {self._judging:g} s: simplify the condition, most of all its regular expressions, or"
            " narrow the range of seqs or times. Nothing was changed."
        )


class _Patient:
    """An executor whose calls may take longer than the driver's own limit."""

    def __init__(self, connection: Any, limit: float) -> None:
        self._connection = connection
        self._limit = limit

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        return await self._connection.fetch(query, *args, timeout=self._limit)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, /, *args: Any) -> Any:
        return await self._connection.fetchrow(query, *args, timeout=self._limit)

    async def fetchval(self, query: str, /, *args: Any) -> Any:
        return await self._connection.fetchval(query, *args, timeout=self._limit)


def _stream_spec(info: StreamInfo) -> StreamSpec:
    return StreamSpec(**{setting: getattr(info, setting) for setting in StreamSpec.__struct_fields__})


def _heads(batch: Batch) -> tuple[list[int], list[int]]:
    """Of a batch the places of the first message of each key, and the seqs of the others."""
    keys: set[str] = set()
    heads, surplus = [], []
    for place, key in enumerate(batch.keys):
        if key in keys:
            surplus.append(batch.seqs[place])
        else:
            keys.add(key)
            heads.append(place)
    return heads, surplus


def _received(batch: Batch, place: int) -> Received:
    return Received(
        ack_id=f"{batch.lease_id}-{batch.seqs[place]}",
        seq=batch.seqs[place],
        key=batch.keys[place],
        data=decoded(batch.data[place]),
        headers=decoded(batch.headers[place] or "null"),
        created_at=batch.created_at[place],
        attempt=batch.attempts[place] if batch.attempts else 1,
    )
