"""Commits that a crash undoes: they are not reported as committed, although the server assigns
their id to another transaction."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.model.errors import InDoubt, StoreUnavailable
from headrace.runtime.messages.transaction import was_committed
from headrace.store.connections.hold import Hold
from tests.conftest import Connect
from tests.runtime.running import eventually
from tests.support.clusters import cluster

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def fragile(tmp_path: Path) -> AsyncIterator[App]:
    """An app with a database that writes to disk ten seconds late, so that a crash undoes the latest commits."""
    with cluster(tmp_path / "postgres", synchronous_commit="off", wal_writer_delay="10s") as server:
        app = App(server.url(), streams=["orders"])
        async with app:
            await app.database.fetch("create table effects (id bigint)")
            yield app


async def crash(app: App) -> None:
    """Kill a backend, so that the server crashes and recovers."""
    victim, bystander = await asyncpg.connect(app.database.dsn), await asyncpg.connect(app.database.dsn)
    os.kill(victim.get_server_pid(), signal.SIGKILL)

    async def noticed() -> bool:
        return bystander.is_closed()

    async def recovered() -> bool:
        with suppress(StoreUnavailable):
            return bool(await app.database.fetchval("select true"))
        return False

    await eventually(noticed)
    await eventually(recovered)
    victim.terminate()


async def use_up(app: App, xid: int) -> None:
    """Use up all transaction ids up to this one in other transactions, and commit."""
    await app.database.fetch("create table if not exists others (id bigint)")
    while (
        await app.database.fetchval("insert into others values (1) returning pg_current_xact_id()::text::bigint") < xid
    ):
        pass


@pytest.mark.process
async def test_a_transaction_that_a_crash_undid_is_not_reported_as_committed(
    fragile: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Hold.commit

    async def taken_back(hold: Hold) -> None:
        """Commit. Before the answer arrives, crash the server and let it assign the same ids."""
        xid = await hold.connection.fetchval("select pg_current_xact_id_if_assigned()::text::bigint")
        await commit(hold)
        await crash(fragile)
        await use_up(fragile, xid)
        assert await store.transaction_status(fragile.database, xid) == "committed", "the id was not given again"
        raise ConnectionResetError("the connection broke at COMMIT")

    await fragile.database.fetch("checkpoint")
    monkeypatch.setattr(Hold, "commit", taken_back)
    told = "committed"
    try:
        async with fragile.transaction() as tx:
            await tx.execute("insert into effects values (7)")
    except StoreUnavailable:
        told = "not committed"
    there = await fragile.database.fetchval("select count(*) from effects")
    assert told == ("committed" if there else "not committed")
    if there:
        pytest.skip("the server wrote its log just before the crash, which took nothing back")


# --- the witness


async def begin(connection: Any, *statements: str) -> tuple[Any, store.Witness | None]:
    """Begin a transaction that is about to commit, with its witness."""
    transaction = connection.transaction()
    await transaction.start()
    for statement in statements:
        await connection.execute(statement)
    return transaction, await store.leave_witness(connection)


WRITE = "insert into headrace_internal.secrets (name, value) values (gen_random_uuid()::text, '')"


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_the_witness_of_a_commit_proves_it_under_any_isolation_level(
    database: store.Database, connect: Connect, isolation: str
) -> None:
    writer, asker = await connect(), await connect()
    await asker.execute(f"set default_transaction_isolation = '{isolation}'")
    for end, status in (("commit", "committed"), ("rollback", "aborted")):
        transaction, witness = await begin(writer, WRITE)
        assert witness is not None
        assert await store.transaction_status(asker, witness.xid, witness=witness) == "in progress"
        await getattr(transaction, end)()
        assert await store.transaction_status(asker, witness.xid, witness=witness) == status


async def test_a_commit_that_is_newer_than_the_snapshot_is_checked_again(
    database: store.Database, connect: Connect
) -> None:
    """The transaction is not reported as aborted only because its witness is not visible."""
    writer, asker = await connect(), await connect()
    transaction, witness = await begin(writer, WRITE)
    assert witness is not None
    async with asker.transaction(isolation="repeatable_read"):
        await asker.fetchval("select count(*) from headrace_internal.commits")
        await transaction.commit()
        assert await store.transaction_status(asker, witness.xid, witness=witness) == "in progress"
    assert await store.transaction_status(asker, witness.xid, witness=witness) == "committed"


async def test_an_id_that_was_assigned_to_another_transaction_proves_nothing(
    database: store.Database, connect: Connect
) -> None:
    writer = await connect()
    transaction, witness = await begin(writer, WRITE)
    await transaction.commit()
    assert witness is not None
    other = witness._replace(nonce=uuid4())
    assert await store.transaction_status(database, witness.xid, witness=other) == "aborted"
    future = witness._replace(nonce=uuid4(), xid=witness.xid + 10**6)
    assert await store.transaction_status(database, future.xid, witness=future) == "aborted"


async def test_transactions_that_write_nothing_or_may_not_write_leave_no_witness(
    database: store.Database, connect: Connect
) -> None:
    writer = await connect()
    transaction, witness = await begin(writer, "select 1")
    assert witness is None
    await transaction.commit()
    transaction, witness = await begin(writer, WRITE, "set transaction read only")
    await transaction.commit()
    assert witness is not None
    assert await store.transaction_status(database, witness.xid, witness=witness) == "committed"
    assert await database.fetchval("select count(*) from headrace_internal.commits") == 0


async def test_a_role_without_other_privileges_can_leave_a_witness(
    database: store.Database, connect: Connect, server_dsn: str
) -> None:
    role = f"tenant_{uuid4().hex}"
    writer = await connect()
    await writer.execute(f"create role {role}; grant usage on schema headrace, headrace_internal to {role}")
    try:
        transaction, witness = await begin(writer, WRITE, f"set local role {role}")
        await transaction.commit()
        assert witness is not None
        assert await store.transaction_status(database, witness.xid, witness=witness) == "committed"
    finally:
        await writer.execute(f"drop owned by {role}; drop role {role}")


async def test_old_witnesses_are_removed_once_the_server_has_been_up_for_long_enough(
    database: store.Database, connect: Connect
) -> None:
    writer, left = await connect(), []
    for _ in range(3):
        transaction, witness = await begin(writer, WRITE)
        await transaction.commit()
        assert witness is not None
        left.append(witness)
    now = datetime.now(UTC)
    later = now + timedelta(minutes=20)
    await database.fetch("delete from headrace_internal.history")
    begun = await store.forget_commits(database, store.Forgotten(), now=later)  # this begins the history
    assert begun.timeline is not None
    await database.fetch("update headrace_internal.history set since = $1", later - timedelta(minutes=9))
    assert not (await store.forget_commits(database, begun, now=later)).more
    assert await kept(database) == [one.xid for one in left], "the server has just recovered"
    await database.fetch("update headrace_internal.history set since = $1", now)
    await database.fetch(
        "update headrace_internal.commits set at = $1 where xid = $2::text::xid8",
        now + timedelta(minutes=15),
        str(left[2].xid),
    )
    done = await store.forget_commits(database, begun, now=later)
    assert (done.floor, done.more) == (left[2].xid, False)
    assert await kept(database) == [left[2].xid]
    assert (await store.forget_commits(database, done, now=later)).floor == left[2].xid
    rewound = await store.forget_commits(database, done._replace(timeline=uuid4()), now=later + timedelta(hours=1))
    assert rewound.floor == left[2].xid
    assert await kept(database) == []


async def kept(database: store.Database) -> list[int]:
    """The transactions that still have witnesses."""
    return [
        row[0] for row in await database.fetch("select xid::text::bigint from headrace_internal.commits order by xid")
    ]


async def test_without_its_witness_an_old_commit_is_known_by_its_id_only_while_nothing_was_rewound(
    database: store.Database, connect: Connect
) -> None:
    writer = await connect()
    await store.forget_commits(database, store.Forgotten())  # this begins the history
    transaction, witness = await begin(writer, WRITE)
    await transaction.commit()
    assert witness is not None
    await database.fetch("delete from headrace_internal.commits")
    old = witness._replace(at=datetime.now(UTC) - timedelta(hours=1))
    assert await store.transaction_status(database, old.xid, witness=witness) == "aborted"
    assert await store.transaction_status(database, old.xid, witness=old) == "committed"
    await database.fetch("delete from headrace_internal.history")
    assert await store.transaction_status(database, old.xid, witness=old) == "unknown"
    with pytest.raises(InDoubt, match="look for its writes"):
        await was_committed(database, old, None, "a commit")
