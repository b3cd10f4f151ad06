"""The other parts of `capture`: the latency of a change, one large transaction, and a backfill beside changes."""

from __future__ import annotations

import time
from typing import Any

import anyio

from benchmarks.captured import (
    EVERY,
    TIMEOUT,
    Memory,
    Spent,
    backfilled,
    captured,
    captured_bench,
    changes_captured,
    insert_rate,
    job,
    row,
    runs,
)
from benchmarks.checks import expect
from benchmarks.crew import crew
from benchmarks.harness import MESSAGES, Bench, Options
from benchmarks.publishing import at_pace
from benchmarks.timing import Phase, milliseconds
from benchmarks.wire import ConsumerJob, Finish

RATE = 500
WARM_UP = 2.0
ROWS = 1000
CONSUMER = {"concurrency": 16, "max_ack_pending": 1000}
LIMIT_OF = 100_000
"""Maximum number of messages with which the raw limit of a backfill is measured."""

_MOVED = "create table moved (id int primary key, number bigint not null, at bigint not null, note text not null)"
_FILL = "insert into moved select n, -1, 0, md5(n::text) from generate_series(0, $1::int - 1) as n"
_MOVE = "update moved set number = $1, at = $2 where id = $3"
_ONE_TRANSACTION = f"""
    select count(*) as messages, count(distinct data -> 'metadata' ->> 'commit_lsn') as transactions,
           count(distinct (data -> 'metadata' ->> 'commit_idx')::int) as places,
           count(distinct (data -> 'record' ->> 'id')::int) as rows from {MESSAGES}
"""
_DIFFER = f"""
    select count(*) from moved full join (
        select distinct on (key) (data -> 'record' ->> 'id')::int as id, (data -> 'record' ->> 'number')::bigint as number
        from {MESSAGES} order by key, seq desc
    ) as told using (id, number) where moved.note is null or told.id is null
"""


class Mover:
    """Updates rows of the table `moved`, one transaction each, one after the other.

    `moved` counts the updates. `took` is the duration of each, in ns.
    """

    def __init__(self, place: Bench, rows: int) -> None:
        self.moved = 0
        self.took: list[int] = []
        self._place = place
        self._rows = rows

    async def move(self) -> None:
        number, start = self.moved, time.monotonic_ns()
        self.moved += 1
        await self._place.database.fetch(_MOVE, number, start, number * 7919 % self._rows)
        self.took.append(time.monotonic_ns() - start)


async def latency(options: Options) -> tuple[dict[str, Any], list[str]]:
    """Capture and handle changes at a pace in one process. The latency is from the statement's call to the handler.

    The call is before the commit.
    """
    seconds = options.duration(20, 2)
    async with captured_bench(options) as place:
        await _table(place, ROWS)
        mover = Mover(place, ROWS)
        handling = ConsumerJob("capture", "changed", CONSUMER)
        async with crew(job(place, "public.moved", consumers=[handling])) as worker:
            await runs(place)
            await at_pace(RATE, min(WARM_UP, seconds), mover.move)
            mover.took.clear()
            start = time.monotonic_ns()
            late = await at_pace(RATE, seconds, mover.move)
            phase = Phase("paced", start, start + int(seconds * 1e9), seconds)
            report = await worker.finish(Finish(mover.moved, [phase]))
        shares = await _shares_without_consumer(place, mover, seconds)
    whole = report.phases["capture"]["paced"].whole
    found = {
        "rate": whole.rate,
        **whole.latency(),
        "of_which_the_update": milliseconds(mover.took),
        "writer_late": late,
        "process_share_of_a_core": report.busy,
        "share_of_a_core_without_consumer": shares,
    }
    return found, report.checks


async def _shares_without_consumer(place: Bench, mover: Mover, seconds: float) -> dict[str, float]:
    """The CPU time of a process that only captures, at the same pace."""
    async with crew(job(place, "public.moved")) as worker:
        await runs(place)
        await at_pace(RATE, min(WARM_UP, seconds), mover.move)
        spent = await Spent.begin(place, worker.pid)
        await at_pace(RATE, seconds, mover.move)
        shares = spent.shares()
        await changes_captured(place, mover.moved)
        await worker.finish(Finish(0))
    return shares


async def big(options: Options, rows: int) -> tuple[dict[str, Any], list[str]]:
    """One transaction of `rows` rows: rows per second until all are in the stream, and the resources of the capture.

    The clock starts when the transaction begins.
    """
    async with captured_bench(options) as place:
        await place.database.fetch(_MOVED)
        async with crew(job(place, "public.moved")) as worker:
            await runs(place)
            memory = Memory(worker.pid)
            before = memory.resident()
            memory.reset()
            spent = await Spent.begin(place, worker.pid)
            start = time.monotonic_ns()
            await _in_one_transaction(place, rows)
            committed = time.monotonic_ns()
            _, last = await changes_captured(place, rows)
            found = {
                "rate": rows / ((last - start) / 1e9),
                "cpu_us_per_change": spent.each(rows),
                "seconds_of_the_transaction": (committed - start) / 1e9,
                "seconds_from_its_commit": (last - committed) / 1e9,
                "before_mib": before,
                "peak_mib": memory.peak(),
                "after_mib": memory.resident(),
            }
            await worker.finish(Finish(0))
        wanted = {"messages": rows, "transactions": 1, "places": rows, "rows": rows}
        expect(await row(place, _ONE_TRANSACTION), wanted, "what became of the transaction")
    return found, [f"one transaction became {rows:,} messages, one for each row, numbered through"]


async def backfill(options: Options, rows: int) -> tuple[dict[str, Any], list[str]]:
    """Backfill a table that changes at a pace."""
    async with captured_bench(options) as place:
        await _table(place, rows)
        mover = Mover(place, rows)
        async with crew(job(place, "public.moved", backfill=True)) as worker:
            done = False
            spent = await Spent.begin(place, worker.pid)

            async def move() -> None:
                while not done:
                    await at_pace(RATE, 0.5, mover.move)

            async with anyio.create_task_group() as group:
                group.start_soon(move)
                finished = await backfilled(place)
                each = spent.each(rows)
                done = True
            await _all_told(place)
            await worker.finish(Finish(0))
        assert finished.started_at is not None
        assert finished.finished_at is not None
        seconds = (finished.finished_at - finished.started_at).total_seconds()
        expect(finished.read, rows, "rows that were read")
        expect(await place.database.fetchval(_DIFFER), 0, "rows that differ from what the stream tells of them last")
        limit = await insert_rate(place, min(rows, LIMIT_OF))
    found = {
        "rate": rows / seconds,
        "limit": limit,
        "ratio": rows / seconds / limit,
        "cpu_us_per_row": each,
        "changes_meanwhile": mover.moved,
        "rows_left_out_for_a_newer_change": rows - finished.published,
    }
    return found, [f"{rows:,} rows are as the stream tells of them last, {mover.moved:,} changes later"]


async def _table(place: Bench, rows: int) -> None:
    await place.database.fetch(_MOVED)
    await place.database.fetch(_FILL, rows)
    await place.rest("moved")


async def _in_one_transaction(place: Bench, rows: int) -> None:
    connection = await place.database.connect()
    try:
        await connection.execute(_FILL, rows, timeout=600)
    finally:
        await connection.close()


async def _all_told(place: Bench) -> None:
    """Wait until every change is in the stream, which is when a later change is captured."""
    end = _number(await place.database.fetchval("select pg_current_wal_lsn()::text"))
    await place.database.fetch("update moved set note = note where id = 0")
    with anyio.fail_after(TIMEOUT):
        while _number((await captured(place)).position or "0/0") <= end:  # noqa: ASYNC110 - the database is asked
            await anyio.sleep(EVERY)


def _number(location: str) -> int:
    """A WAL location, such as `0/16B3748`, as a number."""
    high, low = location.split("/")
    return int(high, 16) << 32 | int(low, 16)
