"""The first part of `capture`: one process captures a backlog of changes from the WAL."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks import checks
from benchmarks.captured import (
    ACCOUNTS,
    Spent,
    captured,
    captured_bench,
    changes_captured,
    insert_rate,
    job,
    make_raw_slot,
    make_tables,
    read_rate,
    row,
    runs,
)
from benchmarks.checks import expect
from benchmarks.crew import crew
from benchmarks.harness import MESSAGES, STREAM, Bench, Options
from benchmarks.timing import Measured
from benchmarks.wire import Finish

_ORDERED = f"""
    select count(distinct at) as places, count(*) filter (where at < before) as backward from (
        select at, lag(at) over (order by seq) as before from (
            select seq, ((data -> 'metadata' ->> 'commit_lsn')::numeric, (data -> 'metadata' ->> 'commit_idx')::int) as at from {MESSAGES}
        ) as places
    ) as steps
"""
_ACCOUNTS_DIFFER = f"""
    select count(*) from (
        select distinct on (key) (data -> 'record' ->> 'aid')::int as aid, (data -> 'record' ->> 'abalance')::int as abalance
        from {MESSAGES} where data -> 'metadata' ->> 'table_name' = 'accounts' order by key, seq desc
    ) as last join accounts using (aid) where last.abalance <> accounts.abalance
"""
_UNTOUCHED_CHANGED = f"""
    select count(*) from accounts where abalance <> 0 and aid not in (
        select (data -> 'record' ->> 'aid')::int from {MESSAGES} where data -> 'metadata' ->> 'table_name' = 'accounts')
"""
_HISTORY_DIFFERS = f"""
    select count(*) from history full join (
        select (data -> 'record' ->> 'hid')::bigint as hid, (data -> 'record' ->> 'aid')::int as aid,
               (data -> 'record' ->> 'delta')::int as delta
        from {MESSAGES} where data -> 'metadata' ->> 'table_name' = 'history'
    ) as told using (hid, aid, delta) where history.hid is null or told.hid is null
"""


class Drained(msgspec.Struct):
    """The results of the repeats."""

    measured: Measured = msgspec.field(default_factory=Measured)
    inserts: list[float] = []
    cpu: list[dict[str, float]] = []
    checks: list[str] = []

    def details(self) -> dict[str, Any]:
        """Of the last repeat: the CPU time per change by process, and the other raw limit."""
        return {"cpu_us_per_change": self.cpu[-1], "bare_inserts": sorted(self.inserts)[len(self.inserts) // 2]}


async def drain(options: Options, transactions: int) -> Drained:
    """Capture `transactions` of two changes each, an update of 4 columns and an insert of 4, from the WAL."""
    found = Drained()
    for _ in range(options.times(3, 1)):
        async with captured_bench(options) as place:
            await make_tables(place)
            async with crew(job(place, "public.accounts", "public.history")) as worker:
                await runs(place)
                await worker.finish(Finish(0))
            raw = await make_raw_slot(place)
            await _work(place, transactions)
            end = await place.database.fetchval("select pg_current_wal_lsn()::text")
            await place.rest("accounts", "history")
            found.measured.samples.append(await _drained(place, 2 * transactions, found))
            found.measured.limit_samples.append(await read_rate(place, raw, 2 * transactions, end))
            found.inserts.append(await insert_rate(place, 2 * transactions))
            found.checks = await check(place, transactions)
    return found


async def _work(place: Bench, transactions: int) -> None:
    connection = await place.database.connect()
    try:
        await connection.execute("set synchronous_commit = off")
        await connection.execute(f"call work(0, {transactions})", timeout=600)
    finally:
        await connection.close()


async def _drained(place: Bench, count: int, found: Drained) -> float:
    """Changes per second, from the start of the capture until the last change is in the stream.

    The capturing process still has to connect after the clock starts.
    """
    before = await captured(place)
    expect(before.captured, 0, "changes that were captured before the clock ran")
    async with crew(job(place, "public.accounts", "public.history")) as worker:
        spent = await Spent.begin(place, worker.pid)
        began, last = await changes_captured(place, count)
        found.cpu.append(spent.each(count))
        await worker.finish(Finish(0))
    return count / ((last - began) / 1e9)


async def check(place: Bench, transactions: int) -> list[str]:
    """Check that the stream's changes lead to the contents of the tables. Raises `CheckFailed` if not."""
    count = 2 * transactions
    stored = await checks.stored(place.database, STREAM, count)
    ordered = await row(place, _ORDERED)
    expect(ordered, {"places": count, "backward": 0}, "places in the WAL, and steps backward")
    for query in (_ACCOUNTS_DIFFER, _UNTOUCHED_CHANGED, _HISTORY_DIFFERS):
        expect(await place.database.fetchval(query), 0, "rows that differ from what the stream tells of them")
    return [
        stored,
        "each is of another change, in the order of the commits",
        f"the {ACCOUNTS:,} accounts and {transactions:,} rows of history are as the stream tells of them",
    ]
