"""The backfill: tables are read from their first row on, while their changes flow.

    backfiller (a task beside the capturer)                  capturer (in the order of the WAL)
      read a chunk, under a snapshot                           captured, saw: what the snapshots may not see
      mark: write a message into the WAL  ───── WAL ─────▶     reached: the chunk belongs here
      read the next one                                        … shaped and appended, with the place in the table
      go on, one chunk ahead  ◀───────────────────────────     appended

A newer change is never overwritten by an older read, see `visibility`. What is kept of a backfill advances in the transaction that appends
its rows, so it goes on where it was after any crash, and the chunks that were on their way then are read again.
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
from headrace.sources.postgres.backfill.settling import settle
from headrace.sources.postgres.backfill.visibility import Changed, Key, Snapshot
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.server import catalog
from headrace.sources.postgres.server.tables import Table
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import BackfillToDo

logger = logging.getLogger("headrace")

POLL = 1.0
"""Seconds between looks whether there is a backfill to do."""

AGAIN = 0.5
"""Seconds until something is tried again that passes by itself."""

AHEAD = 2
"""Chunks that are read and not yet appended."""

FEWEST_ROWS, FIRST_ROWS, MOST_ROWS = 100, 1_000, 10_000
"""Of a chunk, where neither time nor size nor the rate says less."""

QUICK, SLOW = 0.05, 0.1
"""Seconds that reading a chunk, or appending it, should take: changes wait for that long."""

# lock_not_available, query_canceled, serialization_failure, deadlock_detected, insufficient resources
_PASSING = frozenset(("55P03", "57014", "40001", "40P01", "53000", "53100", "53200", "53300"))

# undefined_column, undefined_table, invalid_schema_name, datatype_mismatch, undefined_function, feature_not_supported (a changed plan)
_CHANGED = frozenset(("42703", "42P01", "3F000", "42804", "42883", "0A000"))


class _Way(msgspec.Struct):
    """A chunk whose mark is written. `took`: seconds to read it."""

    chunk: Chunk
    snapshot: Snapshot
    took: float


class Backfiller:
    """The backfills of one source, one after the other, for one tenure of its capture.

    Args:
        database: Headrace's, open.
        number: the source's number in it.
        epoch: the tenure's.
        spec: the source's settings.
        connect: makes a connection to the captured database.
        tables: those that are captured, by the names that the settings have for them.
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
        self._in_hand: deque[tuple[int, float, float]] = deque()  # reached: rows, when, and how long they took to read
        self._astray = False  # whether a chunk was thrown away, and what comes after it with it
        self._moved = anyio.Event()
        # A transform may take milliseconds for each row, all of which are shaped at one place of the stream.
        self._rows = FIRST_ROWS if spec.transform is None else FEWEST_ROWS
        self._appended_at = clock()
        self._refused: tuple[int, int] | None = None  # at which backfill and row the server refused to go on

    # --- told by the capturer, in the order of the WAL

    @property
    def tracking(self) -> bool:
        """Whether `saw` is to be called."""
        return self._changed.tracking

    def captured(self, xid: int) -> None:
        """A transaction was captured, all of it."""
        self._changed.captured(xid)

    def saw(self, table: str, key: Key, xid: int) -> None:
        """A captured transaction changed a row, or with () as its key emptied the table."""
        self._changed.saw(table, key, xid)

    def reached(self, content: bytes) -> Chunk | None:
        """A message with our prefix came: the chunk whose rows are to be appended here; None if there is none (any more)."""
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
        """The rows of a chunk that was reached are in the stream, and its place is kept. Chunks are appended in the order of their coming."""
        if self._in_hand:
            rows, since, took = self._in_hand.popleft()
            now = self._clock()
            self._learn(rows, max(took, now - max(since, self._appended_at)))
            self._appended_at = now
        self._move()

    def failed(self) -> None:
        """What was reached can't be appended: it is read again."""
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
        """Larger chunks while they are quick, smaller ones when they hold up others."""
        if took > SLOW:
            self._rows = max(min(self._rows, rows) // 2, FEWEST_ROWS)
        elif took < QUICK and rows >= self._rows:
            self._rows = min(self._rows * 2, MOST_ROWS)

    # --- the task

    async def run(self) -> None:
        """Work on backfills until cancelled.

        Raises:
            SourceUnavailable, StoreUnavailable: that passes.
            SourceStopped: nobody gets into the captured database.
            LeaseLost: the tenure is over.
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
        """Until nothing is to be done."""
        while (todo := await store.next_backfill(self._database, self._number)) is not None:
            self._astray = False
            try:
                await self._work(link, todo)
            except Unfit as error:
                await self._fail(todo, str(error))
            except SourceRefused as error:
                await self._refusal(todo, error)
            self._ways.clear()
            while self._in_hand:  # until the place is kept
                await self._moved.wait()

    async def _work(self, link: Link, todo: BackfillToDo) -> None:
        """Read the table from where it was left, until it is read, or something is thrown away, or nobody wants it any more."""
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
            if not self._changed.known(reading.snapshot):  # a transaction is captured, and not yet to be seen
                await anyio.sleep(AGAIN / 10)
                continue
            pace.took(len(reading.rows))
            above = await self._send(link, plan, todo, reading, self._clock() - began) or above
            if reading.done:
                await self._until_reached()
                return

    async def _turn(self, todo: BackfillToDo, pace: Pace) -> bool:
        """Wait until another chunk may be read. Returns whether it is still wanted."""
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
        """Mark where the chunk belongs. Returns where the next one begins."""
        place = plan.place_of(reading.rows[-1]) if reading.rows else None
        done = store.ChunkDone(id=todo.number, place=place, read=len(reading.rows), published=0, done=reading.done)
        chunk = Chunk(table=plan.table, columns=plan.names, rows=reading.rows, done=done)
        token = next(self._tokens)
        self._ways[token.encode()] = _Way(
            chunk, reading.snapshot, took
        )  # before it is written: it may be reached at once
        if len(self._ways) == 1:
            self._changed.matters_from(reading.snapshot)
        await chunks.mark(link, token)
        return None if place is None else plan.bound_of(place)

    async def _until_reached(self) -> None:
        while self._ways and not self._astray:
            await self._moved.wait()

    async def _plan(self, link: Link, todo: BackfillToDo) -> Plan:
        """How the table, as it is now, is read. Raises `Unfit`."""
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
        """The server refused: what passes is waited for; a table that was altered is looked at once more; else it is over."""
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
    """The rows whose keys are not among those; none at all if the table was emptied."""
    if not changed:
        return chunk.rows
    if () in changed:
        return []
    places = [chunk.columns.index(name) for name in chunk.table.key]
    key = itemgetter(*places)
    among = changed if len(places) > 1 else {value for (value,) in changed}
    return [row for row in chunk.rows if key(row) not in among]


class Pace:
    """How fast rows are read.

    Args:
        rate: rows a second, at most; None for as many as go.
        clock: seconds, monotonic.
    """

    def __init__(self, rate: int | None, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._next = clock()

    def rows(self, wanted: int) -> int:
        """Rows of a chunk: several a second, rather than a heap now and then."""
        return wanted if self._rate is None else min(wanted, max(self._rate // 4, 10))

    def took(self, rows: int) -> None:
        """So many were read."""
        if self._rate is not None:
            self._next = max(self._next, self._clock()) + rows / self._rate

    def left(self) -> float:
        """Seconds until more may be read."""
        return self._next - self._clock()


async def begin_first(database: store.Executor, source_id: str, spec: PostgresSpec) -> None:
    """Ask for what a source begins with, when it is captured for the first time: a backfill of each of its tables.

    Args:
        source_id: the source's id.
    """
    for table in spec.tables:
        await store.start_backfill(database, source_id, table)
