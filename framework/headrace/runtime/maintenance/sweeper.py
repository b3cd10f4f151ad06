"""The sweeper applies each stream's retention policy, and does other maintenance of streams.

The janitor of a running app sweeps about once a second, in one process per database. Programs that use the
store without an app call `sweep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from time import monotonic
from typing import Any

import msgspec

from headrace import store
from headrace.model.errors import StoreError, StoreUnavailable
from headrace.model.log import Log
from headrace.runtime.maintenance.completions import Completions
from headrace.runtime.maintenance.scheduler import Scheduler
from headrace.runtime.maintenance.unique_keys import UniqueKeys
from headrace.runtime.maintenance.vacuum import Vacuum
from headrace.runtime.maintenance.watermark import Watermark
from headrace.store import StreamToSweep

log = Log("headrace")

CALLS = 20
"""How often one sweep calls each function for a stream. Each call is bounded, and the rest is left to the next
sweep.
"""

PAUSE_AFTER_ERROR = 60.0
"""Seconds for which a stream is skipped after an error that is not temporary."""

MIN_LOCK_TIMEOUT, MAX_LOCK_TIMEOUT = 50, 1000
"""Milliseconds for which a stream may be blocked while a sweep waits for the lock on its table: at first, and
after many failures.
"""

TIDY_EVERY = 60.0
"""Seconds between two searches for abandoned writes."""

MIN_REST, MAX_REST = 1.0, 4.0
"""Minimum and maximum seconds between two visits to a stream where nothing had to be done. The maximum is for
few streams.
"""

VISITS = 20.0
"""The number of visits per second to unchanged streams. With more than eighty of them, each is visited less often."""

TIME_LIMIT = 0.5
"""The time limit of a sweep in seconds. The next sweep starts with the streams that are left."""

FORGET = 600.0
"""Seconds after which everything is read from the beginning once."""


class Swept(msgspec.Struct, kw_only=True):
    """The result of a sweep.

    Attributes:
        segments_made: segments created ahead.
        segments_dropped: segments dropped, with all their messages.
        messages_trimmed: messages removed row by row.
        missed: removed messages that consumers had not got, in all consumers together.
        numbers_drawn: sequence numbers drawn to close a segment early.
        published: scheduled messages that were due.
        ids_forgotten: message ids past their stream's `dedupe_window`.
        unique_keys_forgotten: unique keys whose last message is no longer pending.
        tombstones_removed: keys that a null payload has deleted.
        completions_deleted: rows of the histories of consumers that are no longer kept.
        writes_tidied: deleted records of writes that were abandoned or finished long ago.
        mended: streams with an altered sequence, which now draws one number at a time again.
        vacuumed: tables that had more dead rows than live ones.
        full: streams that refuse publishing for now.
        busy: streams that needed work which a lock prevented.
        more: whether there is more to do immediately.
        again_in: seconds until a stream may have grown by a sixteenth of its `max_storage`, at its current
            rate. None if no stream has one.
    """

    segments_made: int = 0
    segments_dropped: int = 0
    messages_trimmed: int = 0
    missed: int = 0
    numbers_drawn: int = 0
    published: int = 0
    ids_forgotten: int = 0
    unique_keys_forgotten: int = 0
    tombstones_removed: int = 0
    completions_deleted: int = 0
    writes_tidied: int = 0
    mended: list[str] = []
    vacuumed: list[str] = []
    full: list[str] = []
    busy: list[str] = []
    more: bool = False
    again_in: float | None = None

    @property
    def something(self) -> bool:
        """Whether anything was done, or had to be done."""
        return self != Swept(again_in=self.again_in)


async def sweep(database: store.Database, *, now: datetime | None = None) -> Swept:
    """Do once what the janitor of a running app does continuously.

    Args:
        database: an open database.
        now: the time, for tests. By default the server's clock.

    Raises:
        StoreUnavailable: what was done until then stays done.
        Exception: an error of one stream, see `Sweeper.sweep`.
    """
    swept = await Sweeper(database).sweep(now)
    swept.published, _ = await Scheduler(database).deliver(now)
    swept.vacuumed = await Vacuum(database).run()
    await store.adjust_key_indexes(database)
    return swept


class Visit(msgspec.Struct):
    """The last visit to a stream.

    Attributes:
        state: the state of the stream: its settings, and how much was published to it.
        at: the time of the visit in seconds.
        rest: seconds for which an unchanged stream may be skipped.
    """

    state: Any
    at: float
    rest: float


class Sweeper:
    """Sweeps streams. Between sweeps it remembers only what makes the next one cheaper."""

    def __init__(self, database: store.Database) -> None:
        self._database = database
        self._lock_timeouts: dict[int, int] = {}
        self._skipped_until: dict[int, float] = {}  # streams that had errors
        self._visits: dict[int, Visit] = {}
        self._searched_to: dict[int, int] = {}  # for tombstones
        self._noted: dict[int, int] = {}  # by stream, the seq in its row, see `note_drawn`
        self._hinted: dict[int, int] = {}  # by stream, the seq up to which `set_hint_bits` has read
        self._tidy_at = 0.0
        self._forget_at = 0.0
        self._ids = Watermark(database, "headrace_internal.message_ids")
        self._id_floors: dict[int, datetime] = {}
        self._unique_keys = UniqueKeys(database)
        self._completions = Completions(database)
        self._ids_left: set[int] = set()  # streams that lost ids since their floor was found

    def forget(self) -> None:
        """Forget earlier sweeps, because another process may have done the work since."""
        self._visits.clear()
        self._id_floors.clear()
        self._hinted.clear()
        self._completions.forget()

    async def sweep(self, now: datetime | None = None) -> Swept:
        """Maintain the segments, the size and the age of streams: of all if `now` is given, and otherwise of
        those that have changed, and of the others from time to time.

        Raises:
            StoreUnavailable: what was done until then stays done.
            Exception: an error of one stream, after all others were swept. For example `FilterTooSlow`, if
                the messages that a consumer misses can't be counted. That stream is skipped for a minute.
        """
        swept = Swept()
        started = monotonic()
        if started >= self._forget_at:
            self._forget_at = started + FORGET
            self.forget()
        streams = await store.streams_to_sweep(self._database, self._id_floors, now=now)
        failures = []
        for stream in streams if now is not None else self._to_visit(streams, started):
            if monotonic() < self._skipped_until.get(stream.id, 0.0):
                continue
            if now is None and monotonic() > started + TIME_LIMIT:
                break
            try:
                await self._visit(stream, now, swept, len(streams))
            except Exception as failure:
                if isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreError):
                    raise
                self._skipped_until[stream.id] = monotonic() + PAUSE_AFTER_ERROR
                failure.add_note(
                    f"It occurred in the retention of the stream {stream.name!r}, which is retried in {PAUSE_AFTER_ERROR:g} s."
                )
                failures.append(failure)
        if failures:
            raise failures[0]
        if monotonic() >= self._tidy_at:
            self._tidy_at = monotonic() + TIDY_EVERY
            swept.writes_tidied = await store.clean_up_writes(self._database, now=now)
        swept.unique_keys_forgotten = await self._unique_keys.delete_done()
        swept.completions_deleted = await self._completions.delete_old(now)
        return swept

    def _to_visit(self, streams: Sequence[StreamToSweep], now: float) -> list[StreamToSweep]:
        """The streams that have changed or were not visited for a while, the longest waiting first."""
        known = {stream.id for stream in streams}
        for deleted in self._visits.keys() - known:
            del self._visits[deleted]
            self._noted.pop(deleted, None)
            self._hinted.pop(deleted, None)
        chosen = []
        for stream in streams:
            visit = self._visits.get(stream.id)
            if visit is None:
                chosen.append((float("-inf"), stream))
            elif (
                _state(stream) != visit.state
                or (now >= visit.at + visit.rest and stream.limited)
                or stream.has_old_ids
                or stream.id in self._ids_left
                or stream.full
            ):
                chosen.append((visit.at, stream))
        return [stream for _, stream in sorted(chosen, key=lambda one: one[0])]

    async def _visit(self, stream: StreamToSweep, now: datetime | None, swept: Swept, streams: int) -> None:
        before = msgspec.structs.replace(swept)
        await self._maintain(stream, now, swept)
        at = monotonic()
        visit = self._visits.get(stream.id)
        max_rest = max(MAX_REST, streams / VISITS)
        rest = MIN_REST if visit is None or swept != before else min(max(2 * visit.rest, MIN_REST), max_rest)
        self._visits[stream.id] = Visit(_state(stream), at, rest)

    async def _maintain(self, stream: StreamToSweep, now: datetime | None, swept: Swept) -> None:
        if stream.drawn and stream.drawn >= 2 * self._noted.get(stream.id, 0):
            self._noted[stream.id] = await store.note_drawn(self._database, stream.id)
        if not stream.compacted:
            await self._plan(stream, now, swept)
            await self._set_hint_bits(stream)
        if stream.limited:
            if not stream.compacted:
                await self._drop(stream, now, swept)
            if stream.aged or stream.compacted:
                await self._trim(stream.id, now, swept)
            if stream.sized and not stream.compacted:
                swept.numbers_drawn += await store.close_segment_early(self._database, stream.id)
        if (stream.sized or stream.full) and await store.check_full(self._database, stream.id, now=now):
            swept.full.append(stream.name)
        if stream.has_old_ids or stream.id in self._ids_left:
            await self._forget_ids(stream.id, now, swept)
        if stream.tombstones:
            await self._remove_tombstones(stream.id, swept)
        if stream.altered:
            await self._mend(stream, swept)

    async def _mend(self, stream: StreamToSweep, swept: Swept) -> None:
        """Reset a stream's sequence that was altered. Publishers must finish for a moment. Otherwise the next
        sweep tries again.
        """
        mended = await store.try_mend_sequence(self._database, stream.name, self._lock_timeout(stream))
        self._adapt_lock_timeout(stream, not mended, swept)
        if mended:
            swept.mended.append(stream.name)
            hint = "leave the sequence as Headrace creates it: with a cache, an increment or a cycle, consumers miss messages"
            log.warning("altered sequence reset", stream=stream.name, hint=hint)

    async def _plan(self, stream: StreamToSweep, now: datetime | None, swept: Swept) -> None:
        planned = await store.plan_segments(self._database, stream.id, self._lock_timeout(stream), now=now)
        swept.segments_made += planned.made
        if planned.again_in is not None:
            swept.again_in = planned.again_in if swept.again_in is None else min(planned.again_in, swept.again_in)
        if planned.busy or planned.made:
            self._adapt_lock_timeout(stream, planned.busy, swept)

    async def _drop(self, stream: StreamToSweep, now: datetime | None, swept: Swept) -> None:
        more = True
        for _ in range(CALLS):
            dropped = await store.drop_segments(self._database, stream.id, self._lock_timeout(stream), now=now)
            more = dropped.more
            swept.segments_dropped += dropped.segments
            swept.missed += dropped.missed
            if dropped.busy or dropped.segments:
                self._adapt_lock_timeout(stream, dropped.busy, swept)
            if not more:
                break
        swept.more |= more

    async def _trim(self, stream: int, now: datetime | None, swept: Swept) -> None:
        more = True
        for _ in range(CALLS):
            trimmed = await store.trim_stream(self._database, stream, now=now)
            more = trimmed.more
            swept.messages_trimmed += trimmed.messages
            swept.missed += trimmed.missed
            if not more:
                break
        swept.more |= more

    async def _forget_ids(self, stream: int, now: datetime | None, swept: Swept) -> None:
        if not await self._ids.advance():
            self._id_floors.clear()
        visible = self._ids.at
        forgotten, reached = await store.delete_old_message_ids(
            self._database, stream, self._id_floors.get(stream), now=now
        )
        swept.ids_forgotten += forgotten
        self._ids_left.add(stream)
        if visible is not None and reached is not None and now is None:
            self._id_floors[stream] = min(visible, reached)
            if not forgotten:
                self._ids_left.discard(stream)

    async def _remove_tombstones(self, stream: int, swept: Swept) -> None:
        for _ in range(CALLS):
            after = self._searched_to.get(stream, 0)
            removed, reached = await store.remove_tombstones(self._database, stream, after)
            swept.tombstones_removed += removed
            self._searched_to[stream] = reached
            if reached <= after:
                break

    async def _set_hint_bits(self, stream: StreamToSweep) -> None:
        """Set the hint bits of messages since the last visit. Those from before the first visit may be very many."""
        reached = min(self._hinted.get(stream.id, stream.drawn), stream.drawn)
        for _ in range(CALLS):
            if reached >= stream.drawn:
                break
            reached = await store.set_hint_bits(self._database, stream.id, reached)
        self._hinted[stream.id] = reached

    def _lock_timeout(self, stream: StreamToSweep) -> int:
        """Milliseconds to wait for the lock on the stream's table."""
        return self._lock_timeouts.get(stream.id, MIN_LOCK_TIMEOUT)

    def _adapt_lock_timeout(self, stream: StreamToSweep, busy: bool, swept: Swept) -> None:
        """Adapt the lock timeout, because publishers with longer transactions must not block retention for ever."""
        if busy:
            self._lock_timeouts[stream.id] = min(self._lock_timeout(stream) * 2, MAX_LOCK_TIMEOUT)
            if stream.name not in swept.busy:
                swept.busy.append(stream.name)
        else:
            self._lock_timeouts.pop(stream.id, None)


def _state(stream: StreamToSweep) -> tuple[Any, ...]:
    """The state of a stream. Publishing to it or editing it changes the state."""
    return stream.drawn, stream.updated_at, stream.altered
