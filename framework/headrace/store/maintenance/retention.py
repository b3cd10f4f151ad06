"""retain: apply each stream's retention policy, and do other maintenance. See `sql/functions/retention.sql`.

Any process may call it at any time. If several processes reach a stream at the same time, one does the
work. The janitor of a running app calls it about once a second, in one process per database. Programs that
use the store without an app call `sweep`.
"""

from __future__ import annotations

import logging
from datetime import datetime
from time import monotonic
from typing import Any

import msgspec

from headrace.model.errors import StoreError, StoreUnavailable
from headrace.store.database.pool import Database, within
from headrace.store.maintenance.schedule import Schedule
from headrace.store.maintenance.vacuum import Vacuum
from headrace.store.maintenance.watermark import Watermark

logger = logging.getLogger("headrace")

CALLS = 20
"""How often one sweep calls each function for a stream. Each call is bounded, and the rest is left to the next
sweep.
"""

LONGEST_CALL = 30.0
"""The timeout in seconds of a call that evaluates consumers' conditions on messages."""

REPAIR = 60.0
"""Seconds for which a stream is skipped after an error that is not temporary."""

PATIENCE = 50, 1000
"""Milliseconds for which a stream may be blocked while a sweep waits for the lock on its table: at first, and
after many failures.
"""

TIDY_EVERY = 60.0
"""Seconds between two searches for abandoned writes."""

REST = 1.0, 4.0
"""Minimum and maximum seconds between two visits to a stream where nothing had to be done. The maximum is for
few streams.
"""

VISITS = 20.0
"""The number of visits per second to unchanged streams. With more than eighty of them, each is visited less often."""

TIME = 0.5
"""The time limit of a sweep in seconds. The next sweep starts with the streams that are left."""

FORGET = 600.0
"""Seconds after which everything is read from the beginning once."""


class Swept(msgspec.Struct, kw_only=True):
    """What a sweep has done.

    Attributes:
        segments_made: segments created ahead.
        segments_dropped: segments dropped, with all their messages.
        messages_trimmed: messages removed row by row.
        missed: removed messages that consumers had not got, in all consumers together.
        numbers_drawn: sequence numbers drawn to close a segment early.
        published: scheduled messages that were due.
        ids_forgotten: message ids past their stream's `dedupe_window`.
        tombstones_removed: keys that a null payload has deleted.
        writes_tidied: deleted records of writes that were abandoned or finished long ago.
        mended: streams with an altered sequence, which now draws one number at a time again.
        vacuumed: tables that had more dead rows than live ones.
        full: streams that refuse publishing for now.
        busy: streams that needed work which a lock prevented.
        more: whether there is more to do at once.
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
        """Whether anything was done, or had to be done."""
        return self != Swept(again_in=self.again_in)


async def sweep(database: Database, *, now: datetime | None = None) -> Swept:
    """Do once what the janitor of a running app does continuously.

    Args:
        database: an open database.
        now: the time, for tests. By default the server's clock.

    Raises:
        StoreUnavailable: what was done until then stays done.
        Exception: an error of one stream, see `Sweeper.sweep`.
    """
    swept = await Sweeper(database).sweep(now)
    swept.published, _ = await Schedule(database).deliver(now)
    swept.vacuumed = await Vacuum(database).run()
    return swept


class Visit(msgspec.Struct):
    """The last visit to a stream.

    Attributes:
        found: the state of the stream: its settings, and how much was published to it.
        at: the time of the visit in seconds.
        rest: seconds for which an unchanged stream may be skipped.
    """

    found: Any
    at: float
    rest: float


class Sweeper:
    """Sweeps streams. Between sweeps it remembers only what makes the next one cheaper."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._patience: dict[int, int] = {}
        self._rests_until: dict[int, float] = {}  # streams that had errors
        self._visits: dict[int, Visit] = {}
        self._looked_through: dict[int, int] = {}  # for tombstones
        self._tidy_at = 0.0
        self._forget_at = 0.0
        self._ids = Watermark(database, "headrace.message_ids")
        self._id_floors: dict[int, datetime] = {}
        self._ids_left: set[int] = set()  # streams that lost ids since their floor was found

    def forget(self) -> None:
        """Forget earlier sweeps, because another process may have done the work since."""
        self._visits.clear()
        self._id_floors.clear()

    async def sweep(self, now: datetime | None = None) -> Swept:
        """Maintain the segments, the size and the age of streams: of all if `now` is given, and otherwise of
        those that have changed, and of the others from time to time.

        Raises:
            StoreUnavailable: what was done until then stays done.
            Exception: an error of one stream, after all others were swept. For example `FilterTooSlow`, if
                the messages that a consumer misses can't be counted. That stream is skipped for a minute.
        """
        swept = Swept()
        began = monotonic()
        if began >= self._forget_at:
            self._forget_at = began + FORGET
            self.forget()
        rows = await self._database.fetch(
            "select * from headrace.streams_to_sweep(coalesce($1, clock_timestamp()), $2::int[], $3::timestamptz[])",
            now, list(self._id_floors), list(self._id_floors.values()),
        )  # fmt: skip
        failures = []
        for row in rows if now is not None else self._to_visit(rows, began):
            if monotonic() < self._rests_until.get(row["id"], 0.0):
                continue
            if now is None and monotonic() > began + TIME:
                break
            try:
                await self._visit(row, now, swept, len(rows))
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
                "select headrace.clean_up_writes(coalesce($1, clock_timestamp()))", now
            )
        return swept

    def _to_visit(self, rows: list[Any], now: float) -> list[Any]:
        """The streams that have changed or were not visited for a while, the longest waiting first."""
        known = {row["id"] for row in rows}
        for stream in self._visits.keys() - known:
            del self._visits[stream]
        chosen = []
        for row in rows:
            visit = self._visits.get(row["id"])
            if visit is None:
                chosen.append((float("-inf"), row))
            elif (
                _looks(row) != visit.found
                or (now >= visit.at + visit.rest and row["limited"])
                or row["has_old_ids"]
                or row["id"] in self._ids_left
                or row["full"]
            ):
                chosen.append((visit.at, row))
        return [row for _, row in sorted(chosen, key=lambda one: one[0])]

    async def _visit(self, row: Any, now: datetime | None, swept: Swept, streams: int) -> None:
        before = msgspec.structs.replace(swept)
        await self._tend(row, now, swept)
        at = monotonic()
        visit = self._visits.get(row["id"])
        least, most = REST[0], max(REST[1], streams / VISITS)
        rest = least if visit is None or swept != before else min(max(2 * visit.rest, least), most)
        self._visits[row["id"]] = Visit(_looks(row), at, rest)

    async def _tend(self, stream: Any, now: datetime | None, swept: Swept) -> None:
        if not stream["compacted"]:
            await self._plan(stream, now, swept)
        if stream["limited"]:
            if not stream["compacted"]:
                await self._drop(stream, now, swept)
            if stream["aged"] or stream["compacted"]:
                await self._trim(stream["id"], now, swept)
            if stream["sized"] and not stream["compacted"]:
                swept.numbers_drawn += await self._fetchval("select headrace.close_segment_early($1)", stream["id"])
        if (stream["sized"] or stream["full"]) and await self._fetchval(
            "select headrace.check_full($1, coalesce($2, clock_timestamp()))", stream["id"], now
        ):
            swept.full.append(stream["name"])
        if stream["has_old_ids"] or stream["id"] in self._ids_left:
            await self._forget_ids(stream["id"], now, swept)
        if stream["tombstones"]:
            await self._remove_tombstones(stream["id"], swept)
        if stream["altered"]:
            await self._mend(stream, swept)

    async def _mend(self, stream: Any, swept: Swept) -> None:
        """Reset a stream's sequence that was altered. Publishers must finish for a moment. Otherwise the next
        sweep tries again.
        """
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
                    "select * from headrace.trim_stream($1, coalesce($2, clock_timestamp()))", stream, now
                )
            swept.messages_trimmed += trimmed
            swept.missed += missed
            if not more:
                break
        swept.more |= more

    async def _forget_ids(self, stream: int, now: datetime | None, swept: Swept) -> None:
        if not await self._ids.advance():
            self._id_floors.clear()
        visible = self._ids.at
        forgotten, reached = await self._database.fetchrow(
            "select * from headrace.delete_old_message_ids($1, coalesce($2::timestamptz, '-infinity'), coalesce($3, clock_timestamp()))",
            stream, self._id_floors.get(stream), now,
        )  # fmt: skip
        swept.ids_forgotten += forgotten
        self._ids_left.add(stream)
        if visible is not None and reached is not None and now is None:
            self._id_floors[stream] = min(visible, reached)
            if not forgotten:
                self._ids_left.discard(stream)

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
        """Adapt the lock timeout, because publishers with longer transactions must not block retention for ever."""
        if busy:
            self._patience[stream["id"]] = min(self._patience_with(stream) * 2, PATIENCE[1])
            if stream["name"] not in swept.busy:
                swept.busy.append(stream["name"])
        else:
            self._patience.pop(stream["id"], None)

    async def _fetchval(self, query: str, *args: Any) -> Any:
        """The value, or 0 if there is none because another process does the work or the stream was just deleted."""
        return await self._database.fetchval(query, *args) or 0


def _looks(row: Any) -> tuple[Any, ...]:
    """The state of a stream. Publishing to it or editing it changes the state."""
    return row["drawn"], row["updated_at"], row["altered"]
