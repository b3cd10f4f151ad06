"""retain: keep what each stream's policy says, and do what else falls due: see `sql/functions/retention.sql`.

Any process may do it, as often as it likes; of those that come to a stream at the same time, one does the work. The janitor of
a running app does it about once a second. Who uses the store without an app calls `sweep`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from time import monotonic
from typing import Any

import msgspec

from headrace.model.errors import StoreError, StoreUnavailable
from headrace.store.database import Database, within
from headrace.store.translate import translated

logger = logging.getLogger("headrace")

CALLS = 20
"""How often one sweep calls each function for a stream. Each call is bounded; what remains is for the next sweep."""

LONGEST_CALL = 30.0
"""Seconds that a call may take which judges messages by the conditions of consumers."""

REPAIR = 60.0
"""Seconds for which a stream is left alone after something went wrong with it that won't pass by itself."""

PATIENCE = 50, 1000
"""Milliseconds that a stream may be held up while the lock on its table is waited for: at first, and after many failures."""

VACUUM_AGAIN = 1.0, 60.0
"""Seconds from one vacuum of a table to the next: at least, and at most, when an old snapshot keeps the dead rows."""

VACUUM_TIMEOUT = 600.0

TIDY_EVERY = 60.0
"""Seconds from one look for abandoned writes to the next."""


class Swept(msgspec.Struct, kw_only=True):
    """What a sweep has done.

    Attributes:
        segments_made: segments made ahead.
        segments_dropped: segments whose messages, all of them, were removed.
        messages_trimmed: messages removed row by row.
        missed: messages that consumers did not get because they were removed, all consumers together.
        numbers_drawn: sequence numbers that were drawn to close a segment early.
        published: scheduled messages that were due.
        ids_forgotten: message ids past their stream's `dedupe_window`.
        tombstones_removed: keys that a null payload has deleted.
        writes_tidied: writes that were begun and abandoned, or were done long ago, and are forgotten.
        mended: streams whose sequence somebody had altered, and which draws one by one again.
        vacuumed: tables that had more dead rows than live ones.
        full: streams to which publishing is refused for now.
        busy: streams in which something should be done, and somebody was in the way.
        more: whether there is more to do at once.
        again_in: seconds until a stream may have grown by a sixteenth of its `max_storage`, as it grows now; None if none has one.
    """

    segments_made: int = 0
    segments_dropped: int = 0
    messages_trimmed: int = 0
    missed: int = 0
    numbers_drawn: int = 0
    published: int = 0
    ids_forgotten: int = 0
    tombstones_removed: int = 0
    writes_tidied: int = 0
    mended: list[str] = []
    vacuumed: list[str] = []
    full: list[str] = []
    busy: list[str] = []
    more: bool = False
    again_in: float | None = None

    @property
    def something(self) -> bool:
        """Whether anything was done, or should have been."""
        return self != Swept(again_in=self.again_in)


async def sweep(database: Database, *, now: datetime | None = None) -> Swept:
    """Do once what the janitor of a running app does all the time.

    Args:
        database: an open database.
        now: the time, for tests; the server's clock otherwise.

    Raises:
        StoreUnavailable: what was done until then stays done.
        Exception: what went wrong with one stream; see `Sweeper.sweep`.
    """
    sweeper = Sweeper(database)
    swept = await sweeper.sweep(now)
    swept.published, _ = await sweeper.deliver(now)
    swept.vacuumed = await sweeper.vacuum()
    return swept


class Sweeper:
    """What is remembered from one sweep to the next: only how to go about it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._patience: dict[int, int] = {}
        self._rests_until: dict[int, float] = {}  # streams that made trouble
        self._looked_through: dict[int, int] = {}  # for tombstones
        self._vacuum_at: dict[str, tuple[float, float]] = {}  # not before; and how long it was put off
        self._tidy_at = 0.0

    async def sweep(self, now: datetime | None = None) -> Swept:
        """See to the segments, the size and the age of every stream.

        Raises:
            StoreUnavailable: what was done until then stays done.
            Exception: what went wrong with one stream, after all others had their turn, such as `FilterTooSlow`: what a
                consumer misses can't be counted. That stream is left alone for a minute.
        """
        swept = Swept()
        rows = await self._database.fetch(
            """select id, name, one_message_per_key as compacted, tombstones, full_until is not null as full,
                      max_storage is not null as sized, retain_up_to is not null as aged,
                      max_storage is not null or retain_up_to is not null or retention = 'interest' as limited,
                      exists (select from headrace.message_ids as m where m.stream_id = s.id) as has_ids,
                      not headrace.draws_one_by_one(sequence::regclass) as altered
               from headrace.streams as s order by id"""
        )
        failures = []
        for row in rows:
            if monotonic() < self._rests_until.get(row["id"], 0.0):
                continue
            try:
                await self._tend(row, now, swept)
            except Exception as failure:
                if isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreError):
                    raise
                self._rests_until[row["id"]] = monotonic() + REPAIR
                failure.add_note(
                    f"This was retention of the stream {row['name']!r}; it is tried again in {REPAIR:g} s."
                )
                failures.append(failure)
        if failures:
            raise failures[0]
        if monotonic() >= self._tidy_at:
            self._tidy_at = monotonic() + TIDY_EVERY
            swept.writes_tidied = await self._fetchval(
                "select headrace.tidy_writes(coalesce($1, clock_timestamp()))", now
            )
        return swept

    async def _tend(self, stream: Any, now: datetime | None, swept: Swept) -> None:
        if not stream["compacted"]:
            await self._plan(stream, now, swept)
        if stream["limited"]:
            if not stream["compacted"]:
                await self._drop(stream, now, swept)
            if stream["aged"] or stream["compacted"]:
                await self._trim(stream["id"], now, swept)
            if stream["sized"] and not stream["compacted"]:
                swept.numbers_drawn += await self._fetchval("select headrace.close_early($1)", stream["id"])
        if (stream["sized"] or stream["full"]) and await self._fetchval(
            "select headrace.judge_full($1, coalesce($2, clock_timestamp()))", stream["id"], now
        ):
            swept.full.append(stream["name"])
        if stream["has_ids"]:
            swept.ids_forgotten += await self._fetchval(
                "select headrace.forget_ids($1, coalesce($2, clock_timestamp()))", stream["id"], now
            )
        if stream["tombstones"]:
            await self._remove_tombstones(stream["id"], swept)
        if stream["altered"]:
            await self._mend(stream, swept)

    async def _mend(self, stream: Any, swept: Swept) -> None:
        """Somebody altered the stream's sequence. Those who publish must be out for a moment, or it is tried again at the next sweep."""
        mended = await self._fetchval(
            "select headrace.try_mend_sequence($1, $2)", stream["name"], self._patience_with(stream)
        )
        self._learn(stream, not mended, swept)
        if mended:
            swept.mended.append(stream["name"])
            logger.warning(
                "The sequence of the stream %s had a cache, an increment or a cycle, by which messages can get behind"
                " consumers. It draws one by one again. Leave it as it is.",
                stream["name"],
            )

    async def _plan(self, stream: Any, now: datetime | None, swept: Swept) -> None:
        made, busy, again_in = await self._database.fetchrow(
            "select * from headrace.plan_segments($1, $2, coalesce($3, clock_timestamp()))",
            stream["id"],
            self._patience_with(stream),
            now,
        )
        swept.segments_made += made
        if again_in is not None:
            swept.again_in = again_in if swept.again_in is None else min(again_in, swept.again_in)
        if busy or made:
            self._learn(stream, busy, swept)

    async def _drop(self, stream: Any, now: datetime | None, swept: Swept) -> None:
        more = True
        for _ in range(CALLS):
            async with within(self._database, LONGEST_CALL) as connection:
                dropped, missed, more, busy = await connection.fetchrow(
                    "select * from headrace.drop_segments($1, $2, coalesce($3, clock_timestamp()))",
                    stream["id"],
                    self._patience_with(stream),
                    now,
                )
            swept.segments_dropped += dropped
            swept.missed += missed
            if busy or dropped:
                self._learn(stream, busy, swept)
            if not more:
                break
        swept.more |= more

    async def _trim(self, stream: int, now: datetime | None, swept: Swept) -> None:
        more = True
        for _ in range(CALLS):
            async with within(self._database, LONGEST_CALL) as connection:
                trimmed, missed, more = await connection.fetchrow(
                    "select * from headrace.trim($1, coalesce($2, clock_timestamp()))", stream, now
                )
            swept.messages_trimmed += trimmed
            swept.missed += missed
            if not more:
                break
        swept.more |= more

    async def _remove_tombstones(self, stream: int, swept: Swept) -> None:
        for _ in range(CALLS):
            after = self._looked_through.get(stream, 0)
            removed, reached = await self._database.fetchrow(
                "select * from headrace.remove_tombstones($1, $2)", stream, after
            )
            swept.tombstones_removed += removed
            self._looked_through[stream] = reached
            if reached <= after:
                break

    def _patience_with(self, stream: Any) -> int:
        return self._patience.get(stream["id"], PATIENCE[0])

    def _learn(self, stream: Any, busy: bool, swept: Swept) -> None:
        """Publishers whose transactions are longer than our patience must not keep us out for ever."""
        if busy:
            self._patience[stream["id"]] = min(self._patience_with(stream) * 2, PATIENCE[1])
            if stream["name"] not in swept.busy:
                swept.busy.append(stream["name"])
        else:
            self._patience.pop(stream["id"], None)

    async def deliver(
        self, now: datetime | None = None, published: Callable[[str], None] | None = None
    ) -> tuple[int, float | None]:
        """Publish the scheduled messages that are due.

        Args:
            now: the time, for tests.
            published: called with the name of each stream to which something was published.

        Returns:
            How many; and the seconds until there is more to do, None when nothing is scheduled. Raises `StoreUnavailable`.
        """
        total, soonest = 0, None
        rows = await self._database.fetch("select * from headrace.next_scheduled(coalesce($1, clock_timestamp()))", now)
        for stream, name, due_in in rows:
            moved = 0
            for _ in range(CALLS):
                if due_in is None or due_in > 0:
                    break
                count, due_in = await self._database.fetchrow(
                    "select * from headrace.move_scheduled($1, coalesce($2, clock_timestamp()))", stream, now
                )
                moved += count
            if moved and published is not None:
                published(name)
            total += moved
            soonest = due_in if soonest is None else soonest if due_in is None else min(soonest, due_in)
        return total, soonest

    async def vacuum(self) -> list[str]:
        """Vacuum the tables that have more dead rows than live ones. Returns their names. Raises `StoreUnavailable`."""
        vacuumed = []
        for relation, dead in await self._database.fetch("select * from headrace.bloated()"):
            not_before, pause = self._vacuum_at.get(relation, (0.0, 0.0))
            if monotonic() < not_before:
                continue
            await self._vacuum(relation)
            vacuumed.append(relation)
            left: int = await self._database.fetchval(
                "select coalesce(max(dead), 0) from headrace.bloated() where relation = $1", relation
            )
            pause = min(max(2 * pause, VACUUM_AGAIN[0]), VACUUM_AGAIN[1]) if left > dead / 2 else VACUUM_AGAIN[0]
            self._vacuum_at[relation] = (monotonic() + pause, pause)
        return vacuumed

    async def _vacuum(self, relation: str) -> None:
        """On a connection of its own, since it may be neither inside a transaction nor hurried."""
        with translated(self._database.dsn):
            connection = await self._database.connect()
            try:
                # Shortening the file would need a lock against everybody.
                await connection.execute(
                    f"vacuum (index_cleanup on, truncate off, skip_locked on) {relation}", timeout=VACUUM_TIMEOUT
                )
            finally:
                connection.terminate()

    async def _fetchval(self, query: str, *args: Any) -> Any:
        """The value; 0 when there is none, since somebody else is at it or the stream has just been deleted."""
        return await self._database.fetchval(query, *args) or 0
