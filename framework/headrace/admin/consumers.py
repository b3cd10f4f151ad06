"""Consumers: list, create, edit, delete, pause, seek, replay, and their dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Unpack

from msgspec.structs import asdict

from headrace import store
from headrace.admin.base import Base
from headrace.admin.inspection import seek_target
from headrace.admin.validation import (
    MAX_ANSWER_BYTES,
    changed,
    check_above,
    check_grouping,
    check_limit,
    check_seq,
    condition_of,
    dead_letters_of,
    pushed,
    refuse,
    selection_of,
)
from headrace.admin.watching.recording import selected, settings_of_consumer
from headrace.model.clock import utc
from headrace.model.conditions.selections import DeadLetterCriteria, DeathCriteria, RangeCriteria
from headrace.model.errors import FilterTooSlow, InvalidInput, StoreBusy, UnknownConsumer
from headrace.model.pages import Page, PageRequest, follow, follow_states, listing
from headrace.model.records import PEEK_STATES, BlockedKey, ConsumerInfo, DeadLetter, DeadLetterGroup, PeekedMessage
from headrace.model.specs import ConsumerSpec
from headrace.model.watching.audit import Change
from headrace.store.database.time_limit import within

_WAIT = 2.0
"""Seconds to wait for a place to count pending messages, so that a busy server does not hide the consumer."""


async def consumers_page(admin: Base, stream: str | None, asked: PageRequest[tuple[str, str]]) -> Page[ConsumerInfo]:
    """Return a page of the consumers of a stream, or of all. A place is a stream and a name. Pending messages are
    not counted if that takes too long.
    """
    bounds = asdict(asked) | {"max_bytes": MAX_ANSWER_BYTES}
    try:
        async with (
            admin._database.judging(stream or "", _WAIT),
            within(admin._database, admin._counting) as connection,
        ):
            return await store.consumers(connection, stream, **bounds)
    except (FilterTooSlow, StoreBusy):
        return await store.consumers(admin._database, stream, look=0, **bounds)


async def peek_page(
    admin: Base,
    stream: str,
    consumer: int,
    *,
    limit: int,
    above: int = 0,
    below: int | None = None,
    states: Sequence[str] | None = None,
) -> Page[PeekedMessage]:
    """Return a consumer's messages in flight, parked, blocked and next, at most `limit` of each state: the first ones, or
    the last if `below` is given. `consumer` is its number.
    """
    check_limit(limit)
    async with admin._bounded(None, stream) as executor:
        return await store.peek(
            executor, consumer, limit=limit, after=above, before=below, states=states, contents=admin._contents
        )


async def dead_letters_page(
    admin: Base,
    stream: str,
    consumer: int,
    selection: DeadLetterCriteria,
    *,
    limit: int,
    above: int = 0,
    below: int | None = None,
) -> Page[DeadLetter]:
    """Return the dead letters that match, in seq order: the first ones, or the last if `below` is given. `consumer` is the
    number of their consumer.
    """
    check_limit(limit)
    async with admin._bounded(condition_of(selection.get("where")), stream) as executor:
        return await store.dead_letters(
            executor, consumer, selection, above=above, below=below, limit=limit, contents=admin._contents
        )


class Consumers(Base):
    """The calls about consumers."""

    async def create_consumer(self, spec: ConsumerSpec) -> bool:
        """Create a consumer. A consumer that exists with equal settings keeps its position.

        Returns:
            Whether it is new.

        Raises:
            InvalidInput: it exists with other settings.
        """
        change = _change_of(spec.stream, spec.name, "create", settings=settings_of_consumer(spec))

        async def create(connection: store.Executor) -> bool:
            declared = await store.declare_consumer(connection, spec)
            if not declared.new:
                refuse(declared.changed, f"The consumer {spec.name!r} of the stream {spec.stream!r}")
            change.skipped = not declared.new
            return declared.new

        return await self._change(change, create)

    @listing
    async def consumers(
        self, stream: str | None = None, *, limit: int | None = None
    ) -> AsyncIterator[list[ConsumerInfo]]:
        """List the consumers of a stream, or of all streams, by stream and name, at most `limit`. None for all."""
        check_limit(limit)
        if stream is not None:
            await store.stream(self._database, stream)

        async def read(after: tuple[str, str] | None, limit: int) -> Page[ConsumerInfo]:
            return await consumers_page(self, stream, PageRequest(limit=limit, after=after))

        async for page in follow(read, lambda consumer: (consumer.stream, consumer.name), limit=limit):
            yield page

    async def consumer(self, stream: str, name: str) -> ConsumerInfo:
        """Return one consumer.

        If its condition is slow, pending messages are not counted (`num_pending_exact` is False).
        """
        await self._consumer(stream, name)
        try:
            async with self._database.judging(stream, _WAIT), within(self._database, self._counting) as connection:
                return await store.consumer(connection, stream, name)
        except (FilterTooSlow, StoreBusy):
            return await store.consumer(self._database, stream, name, look=0)

    async def edit_consumer(self, stream: str, name: str, /, **changes: Any) -> ConsumerSpec:
        """Change a consumer's settings. Running workers use them from their next lease on.

        Args:
            changes: settings of `ConsumerSpec`, as `@app.consumer` takes them: durations and rates
                as text, `filter`, `where`, and `push` as a `Push`, as None, or as a dict of its
                settings that change. The starting position can't be changed. Use `seek` instead.

        Returns:
            The settings as they are now. Raises `ConfigurationError` for invalid ones.
        """
        consumer = await self._consumer(stream, name)
        if changes.get("rate_limit", ...) is None:  # without a rate there is no burst
            changes = {"rate_burst": None, **changes}
        change = _change_of(stream, name, "edit")

        async def edit(connection: store.Executor) -> ConsumerSpec:
            await store.lock_declarations(connection)
            before, _ = await store.consumer_spec(connection, consumer)
            given = changes
            if isinstance(changes.get("push"), Mapping):
                given = {**changes, "push": pushed(before.push, changes["push"])}
            spec = changed(before, given)
            declared = await store.declare_consumer(connection, spec)
            if declared.new:  # it was deleted meanwhile
                raise UnknownConsumer.named(stream, name)
            change.details, change.skipped = {"changes": declared.changed}, not declared.changed
            return spec

        return await self._change(change, edit)

    async def delete_consumer(self, stream: str, name: str, *, force: bool = False) -> None:
        """Delete a consumer, its position and its dead letters.

        With `force`, it is also deleted while workers use it.

        Raises:
            InUse: workers use it.
        """
        consumer = await self._consumer(stream, name)
        await self._change(
            _change_of(stream, name, "delete", force=force),
            lambda connection: store.delete_consumer(connection, consumer, force=force),
        )

    async def pause(self, stream: str, name: str, until: datetime | None = None) -> ConsumerInfo:
        """Stop delivering to the consumer's workers until the given time, or until `resume`. Messages in flight can still
        be settled.

        Returns:
            The consumer after the change.

        Raises:
            InvalidInput: the time has passed.
        """
        until = utc(until)
        if until is not None and until <= datetime.now(UTC):
            raise InvalidInput(
                f"until={until} has passed. Pass a later time, or None to pause the consumer until you resume it."
            )
        consumer = await self._consumer(stream, name)
        await self._change(
            _change_of(stream, name, "pause", until=until), lambda connection: store.pause(connection, consumer, until)
        )
        return await self.consumer(stream, name)

    async def resume(self, stream: str, name: str) -> ConsumerInfo:
        """End a pause. Waiting workers lease immediately. Returns the consumer after the change."""
        consumer = await self._consumer(stream, name)
        await self._change(_change_of(stream, name, "resume"), lambda connection: store.resume(connection, consumer))
        return await self.consumer(stream, name)

    async def peek(self, stream: str, name: str, *, limit: int = 10, above: int = 0) -> list[PeekedMessage]:
        """Read a consumer's messages without leasing them: in flight, parked, blocked and next.

        There are at most `limit` of each state, with a seq above `above`. They are read in pages of `MAX_ANSWER_BYTES`.
        """
        check_limit(limit)
        check_above(above)
        consumer = await self._consumer(stream, name)

        async def read(after: int, states: Sequence[str] | None) -> Page[PeekedMessage]:
            return await peek_page(self, stream, consumer, limit=limit, above=after, states=states)

        return await follow_states(read, PEEK_STATES, after=above, limit=limit)

    # --- the position of a consumer

    async def seek(self, stream: str, name: str, to: int | datetime | str) -> int:
        """Move a consumer's cursor. The next message delivered is the first at or above `to`.

        Args:
            to: a seq, a time, "start" or "end". After "end", only later commits are delivered.

        After a move back, what was parked, blocked or to be replayed below the new position is still delivered. A move
        forward passes over it. Leases with messages above the new position end, and acks for them have no effect. So do
        all leases after a move forward. Dead letters stay.

        Returns:
            The new position. The next message has a seq above it.

        Raises:
            InvalidInput: a seq after the last one, or a time in the future.
        """
        target = seek_target(to)
        if isinstance(target, datetime):
            return await self._seek(stream, name, target, lambda c, consumer: store.seek_to(c, consumer, time=target))
        if target is None or target == 0:
            return await self._seek(stream, name, to, lambda c, consumer: store.seek(c, consumer, target))
        return await self._seek(stream, name, target, lambda c, consumer: store.seek_to(c, consumer, seq=target))

    async def _seek(
        self, stream: str, name: str, to: object, work: Callable[[store.Executor, int], Awaitable[int]]
    ) -> int:
        consumer = await self._consumer(stream, name)
        change = _change_of(stream, name, "seek", to=to)

        async def seek(connection: store.Executor) -> int:
            change.details["position"] = position = await work(connection, consumer)
            return position

        return await self._change(change, seek)

    async def replay(self, stream: str, name: str, *, dry_run: bool = False, **criteria: Unpack[RangeCriteria]) -> int:
        """Deliver messages to a consumer again, before any new ones.

        They must match the arguments and the consumer's own filters. Bounds are inclusive. Messages
        that are parked, blocked or not delivered yet are left out. Messages in flight are redelivered if an earlier
        message of their key is replayed. `dry_run` only counts.

        Args:
            criteria: `filter`, `where`, `start_seq`, `end_seq`, `start_time` and `end_time`, see `RangeCriteria`.

        Returns:
            The number of messages.
        """
        selection = selection_of(**criteria)
        consumer = await self._consumer(stream, name)
        async with self._bounded(selection.where, stream) as executor:
            count = await store.replay(executor, consumer, selection, dry_run=dry_run)
            change = _change_of(stream, name, "replay", messages=count, **selected(selection))
            await self._record_done(executor, change, dry_run=dry_run)
        return count

    # --- blocked keys and dead letters

    @listing
    async def blocked_keys(
        self, stream: str, name: str, *, limit: int = 100, above: int = 0
    ) -> AsyncIterator[list[BlockedKey]]:
        """List the keys that stay blocked until you redrive or purge their dead letters, in the order of these, at
        most `limit`. Only those whose dead letter has a seq above `above`.
        """
        check_limit(limit)
        check_above(above)
        consumer = await self._consumer(stream, name)

        async def read(after: int | None, limit: int) -> Page[BlockedKey]:
            return await store.blocked_keys(
                self._database, consumer, above=after or above, limit=limit, max_bytes=MAX_ANSWER_BYTES
            )

        async for page in follow(read, lambda blocked: blocked.seq, limit=limit):
            yield page

    @listing
    async def dead_letters(
        self, stream: str, name: str, *, above: int = 0, limit: int | None = 100, **criteria: Unpack[DeadLetterCriteria]
    ) -> AsyncIterator[list[DeadLetter]]:
        """List the dead letters that match and have a seq above `above`, in seq order, at most `limit`. None for all.

        They are read in pages of `MAX_ANSWER_BYTES`. `dead_letters.pages` has the same arguments and returns an asynchronous
        iterator over these pages.

        Args:
            criteria: see `DeadLetterCriteria`.
        """
        selection = dead_letters_of(**criteria)
        check_limit(limit)
        check_above(above)
        consumer = await self._consumer(stream, name)

        async def read(after: int | None, limit: int) -> Page[DeadLetter]:
            return await dead_letters_page(self, stream, consumer, selection, limit=limit, above=after or above)

        async for page in follow(read, lambda letter: letter.seq, limit=limit):
            yield page

    async def dead_letter_groups(
        self, stream: str, name: str, by: str = "type", *, limit: int = 100, **criteria: Unpack[DeathCriteria]
    ) -> list[DeadLetterGroup]:
        """Count the dead letters that match in groups, and return the `limit` largest groups, the largest first.

        Args:
            by: what those of a group have in common: the `type` of their error, its whole text (`error`), the `reason`, the
                `key`, or the `hour` or `day` of their death in UTC. Values are compared as they are stored.
            criteria: see `DeathCriteria`.
        """
        selection = dead_letters_of(**criteria)
        check_grouping(by)
        check_limit(limit)
        consumer = await self._consumer(stream, name)
        async with self._bounded(condition_of(selection.get("where")), stream) as executor:
            return await store.dead_letter_groups(executor, consumer, by, selection, limit=limit)  # type: ignore[arg-type]

    async def dead_letter(self, stream: str, name: str, seq: int) -> DeadLetter:
        """Return one dead letter. Raises `InvalidInput` if no dead letter has this seq."""
        check_seq("seq", seq)
        letters = await store.dead_letters(self._database, await self._consumer(stream, name), above=seq - 1, limit=1)
        if not letters or letters[0].seq != seq:
            raise InvalidInput(f"The consumer {name!r} of the stream {stream!r} has no dead letter {seq}.")
        return letters[0]

    async def redrive(
        self, stream: str, name: str, *, dry_run: bool = False, **criteria: Unpack[DeadLetterCriteria]
    ) -> int:
        """Deliver dead letters again, with their attempts reset to zero. Their keys are unblocked.

        Dead letters of one key are delivered in order. Without criteria, all match. If retention has removed its message,
        a dead letter stays and is not counted. You can publish its data again.

        Args:
            dry_run: only count.
            criteria: see `DeadLetterCriteria`.

        Returns:
            The number of dead letters.
        """
        selection = dead_letters_of(**criteria)
        return await self._settle_dead_letters("redrive", store.redrive, stream, name, selection, dry_run)

    async def purge(
        self, stream: str, name: str, *, dry_run: bool = False, **criteria: Unpack[DeadLetterCriteria]
    ) -> int:
        """Delete dead letters. They are selected as for redriving, see `redrive`. Their keys are unblocked.

        Returns:
            The number of dead letters.
        """
        selection = dead_letters_of(**criteria)
        return await self._settle_dead_letters("purge", store.discard, stream, name, selection, dry_run)

    async def _settle_dead_letters(
        self, action: str, operation: Any, stream: str, name: str, selection: DeadLetterCriteria, dry_run: bool
    ) -> int:
        consumer = await self._consumer(stream, name)
        async with self._bounded(condition_of(selection.get("where")), stream) as executor:
            count: int = await operation(executor, consumer, selection=selection, dry_run=dry_run)
            change = _change_of(stream, name, action, messages=count, **selected(selection))
            await self._record_done(executor, change, dry_run=dry_run)
        return count

    async def _record_done(self, executor: store.Executor, change: Change, *, dry_run: bool) -> None:
        """Record what was done to selected messages, in its transaction, unless there was nothing to do."""
        if change.details["messages"] and not dry_run:
            await self._record(executor, change)


def _change_of(stream: str, name: str, action: str, **details: Any) -> Change:
    return Change(action=f"consumer.{action}", kind="consumer", name=name, stream=stream, details=details)
