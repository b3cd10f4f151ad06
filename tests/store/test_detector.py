"""Detection of lost calls: those for which the server does nothing, and no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import anyio.lowlevel
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.store.connections.connection import Connection
from headrace.store.connections.driver_parameters import CONNECT_TIMEOUT
from headrace.store.database import lost_calls
from headrace.store.database.lost_calls import Backend, PendingCall
from tests.conftest import Connect
from tests.support.silence import Proxy, proxied
from tests.support.silent_work import SOON, wait_for_a_lock


@pytest_asyncio.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    async with proxied(dsn) as proxy:
        yield proxy


Opened = Callable[..., Awaitable[store.Database]]


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[Opened]:
    """Open databases, and close them at the end."""
    made: list[store.Database] = []

    async def opened(dsn: str, **options: Any) -> store.Database:
        made.append(store.Database(dsn, **options))
        await made[-1].open()
        return made[-1]

    yield opened
    for database in made:
        await database.close()


def died(database: store.Database) -> int:
    return int(database.statistics()["died"])


@pytest.mark.asyncio
async def test_a_call_that_the_server_works_on_is_waited_for(proxy: Proxy, opened: Opened, connect: Connect) -> None:
    """It waits for a lock, as a lease call does behind other lease calls of its consumer. A second
    call would make the queue longer."""
    database, holder = await opened(proxy.url()), await connect()
    await wait_for_a_lock(database, holder)
    assert died(database) == 0


@pytest.mark.asyncio
async def test_one_death_has_all_idle_connections_replaced(proxy: Proxy, opened: Opened) -> None:
    database = await opened(proxy.url(), max_connections=5)
    await asyncio.gather(*(database.fetchval("select 1 from pg_sleep(0.1)") for _ in range(5)))
    assert proxy.open == 5
    proxy.forget()
    async with asyncio.timeout(SOON):
        with pytest.raises(StoreUnavailable):
            await database.fetchval("select 1")
        for _ in range(10):
            assert await database.fetchval("select 1") == 1
    assert died(database) == 1


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.long
async def test_a_dead_inspection_connection_is_replaced_before_the_database_counts_as_silent(
    proxy: Proxy, opened: Opened, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    database, holder = await opened(proxy.url()), await connect()
    await holder.execute("select pg_advisory_lock(7)")
    waiting = asyncio.create_task(database.fetchval("select 1 from pg_advisory_xact_lock(7)"))
    async with asyncio.timeout(SOON):
        while database._connector.detector.lookups < 2:
            await holder.execute("select pg_sleep(0.05)")
        proxy.forget()
        await holder.execute("select pg_advisory_unlock(7)")
        with pytest.raises(StoreUnavailable):
            await waiting
    assert "does not answer" not in caplog.text


@pytest.mark.asyncio
async def test_the_patience_of_a_statement_doubles_once_however_many_calls_die_together(
    proxy: Proxy, opened: Opened
) -> None:
    database = await opened(proxy.url(), max_connections=3)
    await asyncio.gather(*(database.fetchval("select 1 from pg_sleep(0.1)") for _ in range(3)))
    proxy.forget()
    async with asyncio.timeout(SOON):
        calls = await asyncio.gather(*(database.fetchval("select 2") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(call, StoreUnavailable) for call in calls)
    assert database._connector.detector._suspect_after == {"select 2": 2 * lost_calls.SUSPECT_AFTER}


@pytest.mark.asyncio
async def test_a_connection_that_is_being_made_when_the_network_heals_is_made_again(
    database: store.Database, proxy: Proxy, opened: Opened
) -> None:
    through = await opened(proxy.url())
    proxy.cut()
    before = proxy.accepted
    asking = asyncio.create_task(through.fetchval("select 1"))
    async with asyncio.timeout(SOON):
        while proxy.accepted == before:
            await database.fetch("select pg_sleep(0.05)")
        proxy.heal()  # the connection that was being made stays dead
    async with asyncio.timeout(CONNECT_TIMEOUT - 1):
        assert await asking == 1


@pytest.mark.asyncio
async def test_a_call_that_is_cancelled_in_silence_returns_its_connection(
    database: store.Database, proxy: Proxy, opened: Opened
) -> None:
    through = await opened(proxy.url(), max_connections=1)
    asking = asyncio.create_task(through.fetchval("select pg_sleep(60)"))
    asks = """select true from pg_stat_activity
              where datname = current_database() and query = 'select pg_sleep(60)' and wait_event = 'PgSleep'"""
    async with asyncio.timeout(SOON):
        while not await database.fetchval(asks):
            pass
    proxy.cut()
    asking.cancel()
    async with asyncio.timeout(SOON):
        with pytest.raises(asyncio.CancelledError):
            await asking
        proxy.heal()
        assert await through.fetchval("select 1") == 1


@pytest.mark.asyncio
async def test_a_silent_address_does_not_prevent_the_next_one(dsn: str, proxy: Proxy, opened: Opened) -> None:
    async with proxied(dsn) as other:
        both = f"127.0.0.1:{proxy.port},127.0.0.1:{other.port}"
        parts = urlsplit(proxy.url())
        database = await opened(
            parts._replace(netloc=f"{parts.username}@{both}", query="target_session_attrs=read-write").geturl()
        )
        assert await database.fetchval("select 1") == 1
        assert (proxy.open, other.open) == (1, 0)
        proxy.cut()
        async with asyncio.timeout(SOON):
            with pytest.raises(StoreUnavailable):  # the connection was made to the first address
                await database.fetchval("select 1")
            assert await database.fetchval("select 1") == 1
        tried = proxy.accepted
        assert await asyncio.gather(*(database.fetchval("select 1 from pg_sleep(0.1)") for _ in range(3))) == [1] * 3
        assert proxy.accepted == tried  # from now on it is tried last


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.long
async def test_a_large_answer_on_a_slow_line_is_waited_for(dsn: str, opened: Opened) -> None:
    async with proxied(dsn, pace=0.05) as slow:
        database = await opened(slow.url())
        answer = asyncio.create_task(database.fetchval("select repeat('x', 5000000)"))
        async with asyncio.timeout(SOON):
            assert len(await answer) == 5_000_000
        assert database._connector.detector.lookups > 2
        assert died(database) == 0


@pytest.mark.asyncio
async def test_a_process_that_was_frozen_does_not_take_its_connections_for_dead(proxy: Proxy, opened: Opened) -> None:
    database = await opened(proxy.url())
    asking = asyncio.create_task(database.fetchval("select 1 from pg_sleep(0.1)"))
    async with asyncio.timeout(SOON):
        while not database._connector.detector._waiting:
            await anyio.lowlevel.checkpoint()
        time.sleep(2)  # noqa: ASYNC251 - as a handler that blocks the loop does
        assert await asking == 1
    assert died(database) == 0


@pytest.mark.asyncio
async def test_a_connection_that_is_closed_between_the_round_trips_of_a_statement_is_an_outage(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    introspect = Connection._introspect_types  # type: ignore[attr-defined]

    async def closed(self: Connection, *args: Any) -> Any:
        self.terminate()
        return await introspect(self, *args)

    monkeypatch.setattr(Connection, "_introspect_types", closed)
    with pytest.raises(StoreUnavailable):
        await database.fetchval("select $1::headrace_internal.due_messages", None)


@pytest.mark.asyncio
async def test_the_server_checks_whether_its_client_is_there(dsn: str, opened: Opened) -> None:
    ask = "select current_setting('client_connection_check_interval')"
    assert await (await opened(dsn)).fetchval(ask) == "2s"
    assert await (await opened(f"{dsn}&options=-c%20client_connection_check_interval%3D7s")).fetchval(ask) == "7s"


# --- decisions without a server


class _Connection:
    opened_at = 100.0

    def get_server_pid(self) -> int:
        return 42


def waiting() -> PendingCall:
    return PendingCall("select lease()", 200.0, 201.0)


def backend(state: str | None = "idle", event: str | None = "ClientRead", **other: Any) -> Backend:
    facts: dict[str, Any] = {"pid": 42, "age": 101.0, "query": "select lease()", "busy": 1.0, "started": 200.0, **other}
    return Backend(state=state, wait_event=event, **facts)


def test_a_backend_seen_idle_once_may_have_answered_just_now() -> None:
    call = waiting()
    assert not lost_calls.is_lost(call, [backend()], 1.5, 201.5)
    assert lost_calls.is_lost(call, [backend()], 2.0, 202.0)


@pytest.mark.parametrize(
    ("mine", "gone"),
    [
        (backend("active", None), False),
        (backend("active", "advisory"), False),
        (backend(None, None), False),
        (backend("disabled", None), False),
        (backend("idle in transaction"), True),
        (backend("active", "ClientRead"), True),
        (backend("active", "ClientWrite"), True),
        (None, True),
    ],
)
def test_a_call_is_lost_when_the_server_does_nothing_for_it(mine: Backend | None, gone: bool) -> None:
    call = waiting()
    mine_ = [] if mine is None else [mine]
    lost_calls.is_lost(call, mine_, 2.0, 202.0)
    assert lost_calls.is_lost(call, mine_, 3.0, 203.0) is gone


def test_an_answer_that_comes_slowly_is_not_lost() -> None:
    call = waiting()
    assert not any(lost_calls.is_lost(call, [backend()], 0.2, 201.0 + look) for look in range(50))


def test_patience_is_longer_where_received_bytes_are_unknown() -> None:
    call = waiting()
    assert not any(lost_calls.is_lost(call, [], None, 201.0 + look) for look in range(9))
    assert not lost_calls.is_lost(call, [], None, 211.0)
    assert lost_calls.is_lost(call, [], None, 212.0)


def test_a_call_that_is_worked_on_is_looked_up_less_and_less_often() -> None:
    call, lookups = waiting(), []
    for _ in range(7):
        lookups.append(call.next_lookup_at)
        lost_calls.is_lost(call, [backend("active", None)], 5.0, call.next_lookup_at)
    assert [round(later - sooner, 2) for sooner, later in pairwise(lookups)] == [
        0.5, 0.75, 1.12, 1.69, 2.53, 3.8,
    ]  # fmt: skip


def test_a_backend_that_has_the_pid_of_another_is_not_ours() -> None:
    assert lost_calls.backend_of(_Connection(), waiting(), [backend(age=3.0)], 201.0) == []
    assert lost_calls.backend_of(_Connection(), waiting(), [backend(age=100.0)], 201.0)


@pytest.mark.parametrize("age", [101.0 + 3600.0, 101.0 - 3600.0], ids=["forward", "back"])
def test_a_call_that_is_worked_on_is_waited_for_though_the_clock_of_the_server_was_set(age: float) -> None:
    call, at_work, idle = waiting(), backend("active", None, age=age), backend(age=age)
    assert lost_calls.backend_of(_Connection(), call, [at_work], 201.0) == [at_work]
    assert lost_calls.backend_of(_Connection(), call, [idle], 201.0) == [], "it may be the backend of another"


def test_behind_a_pooler_a_call_at_work_is_waited_for_though_the_clock_of_the_server_is_set_meanwhile() -> None:
    call = waiting()
    for busy_for in (1.5, 3602.0, 3603.0):
        now = call.next_lookup_at
        mine = lost_calls.find_candidates(call, [backend("active", None, busy=busy_for)], now - 200.0, now)
        assert not lost_calls.is_lost(call, mine, now - 200.0, now)


def test_behind_a_pooler_statements_are_identified_by_their_text() -> None:
    other, same, cut = backend(query="select"), backend(pid=7), backend(pid=8, query="select le")
    found = lost_calls.find_candidates(waiting(), [backend(query="update"), same, cut, other], 1.5, 201.5)
    assert found == [same, cut, other]


def test_behind_a_pooler_a_statement_that_runs_for_much_longer_is_another() -> None:
    assert lost_calls.find_candidates(waiting(), [backend("active", busy=60.0)], 1.5, 201.5) == []


def busy(started: float) -> Backend:
    return backend("active", None, started=started)


def test_behind_a_pooler_others_of_the_same_kind_do_not_hide_that_a_call_is_lost() -> None:
    """Lease calls all have the same text, and on a busy database one is always in progress."""
    call, lost = waiting(), []
    while not any(lost) and len(lost) < 9:
        now = call.next_lookup_at
        mine = lost_calls.find_candidates(call, [busy(now - 0.01)], now - 200.0, now)
        lost.append(lost_calls.is_lost(call, mine, now - 200.0, now))
    assert lost == [False, False, True]


def test_behind_a_pooler_a_call_that_may_be_under_way_is_waited_for() -> None:
    call = waiting()
    for _ in range(20):
        now = call.next_lookup_at
        mine = lost_calls.find_candidates(call, [busy(now), busy(200.0)], now - 200.0, now)
        assert not lost_calls.is_lost(call, mine, now - 200.0, now)


def test_behind_a_pooler_a_call_with_a_late_second_half_is_waited_for() -> None:
    """The statement is prepared before the first look and executed after it."""
    call = waiting()
    lost_calls.is_lost(call, lost_calls.find_candidates(call, [], 1.0, 201.0), 1.0, 201.0)
    for now in (205.0, 206.0, 207.0, 208.0):
        mine = lost_calls.find_candidates(call, [busy(201.5)], now - 201.5, now)
        assert not lost_calls.is_lost(call, mine, now - 201.5, now)
