"""The backfill publishes the existing rows of tables, while their changes are captured.

    backfiller (a task beside the capturer)                  capturer (in the order of the WAL)
      read a chunk, under a snapshot                           captured, saw: what the snapshots may not see
      mark: write a message into the WAL  ───── WAL ─────▶     reached: the chunk belongs here
      read the next one                                        … shaped and appended, with the place in the table
      go on, one chunk ahead  ◀───────────────────────────     appended

An older read never overwrites a newer change, see `visibility`. The stored place advances in the
transaction that appends the rows. So after any crash the backfill continues where it was, and reads
again the chunks that were not appended yet.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from operator import itemgetter
from uuid import uuid4

import anyio
import msgspec

from headrace import store
from headrace.sources.postgres.backfill import chunks
from headrace.sources.postgres.backfill.chunks import Chunk, Plan, Reading, Unfit
from headrace.sources.postgres.backfill.open_transactions import settle
from headrace.sources.postgres.backfill.visibility import Changed, Key, Snapshot
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.database.tables import Table
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import BackfillToDo

logger = logging.getLogger("headrace")

POLL = 1.0
"""Seconds between two checks for a backfill to do."""

AGAIN = 0.5
"""Seconds before a retry after a temporary failure."""

AHEAD = 2
"""Largest number of chunks that are read and not yet appended."""

FEWEST_ROWS, FIRST_ROWS, MOST_ROWS = 100, 1_000, 10_000
"""Limits of a chunk's rows. Its duration, its size or the rate may reduce them."""

QUICK, SLOW = 0.05, 0.1
"""Target range in seconds for reading or appending a chunk. Changes wait for that long."""

# lock_not_available, query_canceled, serialization_failure, deadlock_detected, insufficient
# resources
_PASSING = frozenset(("55P03", "57014", "40001", "40P01", "53000", "53100", "53200", "53300"))

# undefined_column, undefined_table, invalid_schema_name, datatype_mismatch, undefined_function,
# feature_not_supported (a changed plan)
_CHANGED = frozenset(("42703", "42P01", "3F000", "42804", "42883", "0A000"))


class _Way(msgspec.Struct):
    """A chunk with its mark written. `took` is the time to read it, in seconds."""

    chunk: Chunk
    snapshot: Snapshot
    took: float


class Backfiller:
    """Runs the backfills of one source, one after the other, under one capture lease.

    Args:
        database: Headrace's database, open.
        number: the source's number in it.
        epoch: the capture lease's epoch.
        spec: the source's settings.
        connect: makes a connection to the captured database.
        tables: returns the captured tables, by their names in the settings.
        clock: seconds, monotonic.
    """

    def __init__(
        self, database: store.Database, number: int, epoch: int, spec: PostgresSpec, connect: Callable[[], Awaitable[Link]],
        tables: Callable[[], Mapping[str, Table]], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._database = database
        self._number = number
        self._epoch = epoch
        self._spec = spec
        self._connect = connect
        self._tables = tables
        self._clock = clock
        self._changed = Changed()
        self._settled = False
        self._tokens = (f"{uuid4().hex}-{n}" for n in itertools.count())
        self._ways: dict[bytes, _Way] = {}  # in the order of their marks
        self._in_hand: deque[tuple[int, float, float]] = deque()  # reached: rows, when, and the time to read them
        self._astray = False  # whether a chunk was discarded, and the following ones with it
        self._moved = anyio.Event()
        # A transform may take milliseconds for each row, and all rows of a chunk are shaped at one
        # place of the stream.
        self._rows = FIRST_ROWS if spec.transform is None else FEWEST_ROWS
        self._appended_at = clock()
        self._refused: tuple[int, int] | None = None  # the backfill and the row at which the server refused to continue

    # --- called by the capturer, in the order of the WAL

    @property
    def tracking(self) -> bool:
        """Whether `saw` has to be called."""
        return self._changed.tracking

    def captured(self, xid: int) -> None:
        """Note that a transaction was captured completely."""
        self._changed.captured(xid)

    def saw(self, table: str, key: Key, xid: int) -> None:
        """Note that a captured transaction changed a row. The key () means that it truncated the table."""
        self._changed.saw(table, key, xid)

    def reached(self, content: bytes) -> Chunk | None:
        """Return the chunk to append at a WAL message with Headrace's prefix. None if there is no such
        chunk, or it was discarded.
        """
        way = self._ways.pop(content, None)
        if way is None:
            return None
        if not self._changed.known(way.snapshot):
            self._throw_away()
            return None
        unseen = self._changed.unseen(way.snapshot)
        if self._ways:
            self._changed.matters_from(next(iter(self._ways.values())).snapshot)
        chunk = way.chunk
        self._in_hand.append((len(chunk.rows), self._clock(), way.took))
        chunk.rows = _without(chunk, unseen)
        return chunk

    def appended(self, backfill: int) -> None:
        """Note that the rows of a reached chunk are in the stream, and its place is stored. Chunks are
        appended in the order in which they were reached.
        """
        if self._in_hand:
            rows, since, took = self._in_hand.popleft()
            now = self._clock()
            self._learn(rows, max(took, now - max(since, self._appended_at)))
            self._appended_at = now
        self._move()

    def failed(self) -> None:
        """Note that the reached chunks can't be appended. They are read again."""
        self._in_hand.clear()
        self._throw_away()

    def _throw_away(self) -> None:
        self._ways.clear()
        self._astray = True
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    def _learn(self, rows: int, took: float) -> None:
        """Adapt the size of chunks: larger while they are quick, smaller when they are slow."""
        if took > SLOW:
            self._rows = max(min(self._rows, rows) // 2, FEWEST_ROWS)
        elif took < QUICK and rows >= self._rows:
            self._rows = min(self._rows * 2, MOST_ROWS)

    # --- the task

    async def run(self) -> None:
        """Work on backfills until cancelled.

        Raises:
            SourceUnavailable, StoreUnavailable: a temporary failure.
            SourceStopped: the captured database refuses connections.
            LeaseLost: the capture lease is lost.
        """
        while True:
            if await store.next_backfill(self._database, self._number) is None:
                await anyio.sleep(POLL)
                continue
            link = await self._connect()
            try:
                await link.query(chunks.SETTINGS)
                await self._all(link)
            finally:
                self._ways.clear()
                self._changed.end()
                with anyio.CancelScope(shield=True):
                    await link.close()

    async def _all(self, link: Link) -> None:
        """Work on backfills until there are none."""
        while (todo := await store.next_backfill(self._database, self._number)) is not None:
            self._astray = False
            try:
                await self._work(link, todo)
            except Unfit as error:
                await self._fail(todo, str(error))
            except SourceRefused as error:
                await self._refusal(todo, error)
            self._ways.clear()
            while self._in_hand:  # until their places are stored
                await self._moved.wait()

    async def _work(self, link: Link, todo: BackfillToDo) -> None:
        """Read the table from its stored place. Ends when it is read, a chunk is discarded, or the
        backfill is no longer wanted.
        """
        plan = await self._plan(link, todo)
        above = None if todo.place is None else plan.bound_of(todo.place)
        self._changed.begin(plan.table.name)
        total = todo.total if todo.total is not None else await chunks.estimate(link, plan)
        if not await store.begin_backfill(self._database, self._number, self._epoch, todo.number, total):
            return
        if todo.fresh:
            logger.info("%s: %s is backfilled, about %s rows", self._spec.name, todo.table, total)
        if not self._settled:
            await settle(link, self._clock)
            self._settled = True
        below = await chunks.last_of(link, plan)
        pace = Pace(todo.rate or self._spec.rate, self._clock)
        while await self._turn(todo, pace):
            began = self._clock()
            reading = await chunks.read(link, plan, above, below, pace.rows(self._rows), self._clock)
            if not self._changed.known(reading.snapshot):  # a captured transaction is not visible yet
                await anyio.sleep(AGAIN / 10)
                continue
            pace.took(len(reading.rows))
            above = await self._send(link, plan, todo, reading, self._clock() - began) or above
            if reading.done:
                await self._until_reached()
                return

    async def _turn(self, todo: BackfillToDo, pace: Pace) -> bool:
        """Wait until another chunk may be read. Returns whether the backfill is still wanted."""
        while len(self._ways) + len(self._in_hand) >= AHEAD and not self._astray:
            await self._moved.wait()
        while not self._astray and await store.backfill_wanted(self._database, todo.number):
            wait = pace.left()
            if wait <= 0:
                return True
            await anyio.sleep(min(wait, POLL))
        return False

    async def _send(
        self, link: Link, plan: Plan, todo: BackfillToDo, reading: Reading, took: float
    ) -> list[str] | None:
        """Mark the chunk's place in the WAL. Returns the bound at which the next chunk begins."""
        place = plan.place_of(reading.rows[-1]) if reading.rows else None
        done = store.ChunkDone(id=todo.number, place=place, read=len(reading.rows), published=0, done=reading.done)
        chunk = Chunk(table=plan.table, columns=plan.names, rows=reading.rows, done=done)
        token = next(self._tokens)
        self._ways[token.encode()] = _Way(
            chunk, reading.snapshot, took
        )  # before the mark is written, since it may be reached at once
        if len(self._ways) == 1:
            self._changed.matters_from(reading.snapshot)
        await chunks.mark(link, token)
        return None if place is None else plan.bound_of(place)

    async def _until_reached(self) -> None:
        while self._ways and not self._astray:
            await self._moved.wait()

    async def _plan(self, link: Link, todo: BackfillToDo) -> Plan:
        """Return the plan to read the table's current version. Raises `Unfit`."""
        [(standby,)] = await link.query("select pg_is_in_recovery()")
        if standby == "t":
            raise Unfit(
                "The captured server is a standby, into whose WAL nobody can write where the rows belong among the changes: capture the"
                " primary, or promote the standby, and start the backfill anew."
            )
        known = self._tables().get(todo.table)
        found = None if known is None else await catalog.table_of(link, known.oid, self._spec.publication)
        if known is None or found is None:
            raise Unfit(
                f"The table {todo.table} does not exist, or is none of the source's tables: it was dropped, or the source was edited."
            )
        return await chunks.plan(link, known, found[0], self._spec, todo.where)

    async def _refusal(self, todo: BackfillToDo, error: SourceRefused) -> None:
        """Handle a refusal of the server. A temporary one is retried after a pause. An altered table
        is planned once more. Otherwise the backfill fails.
        """
        at = (todo.number, todo.read)
        if error.sqlstate in _PASSING:
            await anyio.sleep(AGAIN)
        elif error.sqlstate in _CHANGED and self._refused != at:
            self._refused = at
        elif error.sqlstate == "42501":
            await self._fail(
                todo,
                f"{error} The role of the source's database URL must be able to read all of it: grant select on {todo.table} to ….",
            )
        else:
            await self._fail(todo, f"{todo.table} can't be read. {error}")

    async def _fail(self, todo: BackfillToDo, reason: str) -> None:
        await store.fail_backfill(self._database, self._number, self._epoch, todo.number, reason)
        logger.warning("%s: the backfill of %s has failed: %s", self._spec.name, todo.table, reason)


def _without(chunk: Chunk, changed: set[Key]) -> list[list[bytes | None]]:
    """Return the rows with keys that were not changed. None are left if the table was truncated."""
    if not changed:
        return chunk.rows
    if () in changed:
        return []
    places = [chunk.columns.index(name) for name in chunk.table.key]
    key = itemgetter(*places)
    among = changed if len(places) > 1 else {value for (value,) in changed}
    return [row for row in chunk.rows if key(row) not in among]


class Pace:
    """Limits the rate at which rows are read.

    Args:
        rate: largest number of rows per second. None means no limit.
        clock: seconds, monotonic.
    """

    def __init__(self, rate: int | None, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._next = clock()

    def rows(self, wanted: int) -> int:
        """Return the number of rows for a chunk. With a rate, several small chunks are read per second."""
        return wanted if self._rate is None else min(wanted, max(self._rate // 4, 10))

    def took(self, rows: int) -> None:
        """Count rows that were read."""
        if self._rate is not None:
            self._next = max(self._next, self._clock()) + rows / self._rate

    def left(self) -> float:
        """Return the seconds until more rows may be read."""
        return self._next - self._clock()


async def begin_first(database: store.Executor, source_id: str, spec: PostgresSpec) -> None:
    """Request a backfill of each table of a source that is captured for the first time.

    Args:
        source_id: the source's id.
    """
    for table in spec.tables:
        await store.start_backfill(database, source_id, table)
