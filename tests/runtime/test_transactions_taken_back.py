"""A commit that a crash takes back is never told as one that happened, though the server gives its id to somebody else."""

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
from headrace.runtime.transaction import was_committed
from headrace.store.connection import Hold
from tests.conftest import Connect
from tests.runtime.running import eventually
from tests.support.clusters import cluster

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def fragile(tmp_path: Path) -> AsyncIterator[App]:
    """An app whose database waits for the disk ten seconds late, so that a crash takes back what was committed last."""
    with cluster(tmp_path / "postgres", synchronous_commit="off", wal_writer_delay="10s") as server:
        app = App(server.url(), streams=["orders"])
        async with app:
            await app.database.fetch("create table effects (id bigint)")
            yield app


async def crash(app: App) -> None:
    """Kill a backend, and with it the server, which recovers."""
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
    """Let others have all transaction ids up to this one, and commit."""
    await app.database.fetch("create table if not exists others (id bigint)")
    while (
        await app.database.fetchval("insert into others values (1) returning pg_current_xact_id()::text::bigint") < xid
    ):
        pass


async def test_a_service_is_not_told_committed_for_what_a_crash_took_back(
    fragile: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Hold.commit

    async def taken_back(hold: Hold) -> None:
        """Committed; but before the answer is here, the server crashes, and goes on with the same ids."""
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
    """A transaction that is about to commit, and its witness."""
    transaction = connection.transaction()
    await transaction.start()
    for statement in statements:
        await connection.execute(statement)
    return transaction, await store.leave_witness(connection)


WRITE = "insert into headrace.secrets (name, value) values (gen_random_uuid()::text, '')"


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_the_witness_of_a_commit_tells_of_it_whatever_the_isolation(
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


async def test_a_commit_that_a_snapshot_is_too_old_for_is_asked_for_again(
    database: store.Database, connect: Connect
) -> None:
    """It is not said of it that it was aborted, only since its witness isn't seen."""
    writer, asker = await connect(), await connect()
    transaction, witness = await begin(writer, WRITE)
    assert witness is not None
    async with asker.transaction(isolation="repeatable_read"):
        await asker.fetchval("select count(*) from headrace.commits")
        await transaction.commit()
        assert await store.transaction_status(asker, witness.xid, witness=witness) == "in progress"
    assert await store.transaction_status(asker, witness.xid, witness=witness) == "committed"


async def test_an_id_that_was_given_to_another_one_tells_nothing(database: store.Database, connect: Connect) -> None:
    writer = await connect()
    transaction, witness = await begin(writer, WRITE)
    await transaction.commit()
    assert witness is not None
    other = witness._replace(nonce=uuid4())
    assert await store.transaction_status(database, witness.xid, witness=other) == "aborted"
    future = witness._replace(nonce=uuid4(), xid=witness.xid + 10**6)
    assert await store.transaction_status(database, future.xid, witness=future) == "aborted"


async def test_what_was_written_nowhere_and_what_may_not_write_leave_no_witness(
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
    assert await database.fetchval("select count(*) from headrace.commits") == 0


async def test_a_witness_is_left_by_a_role_that_may_do_nothing_else(
    database: store.Database, connect: Connect, server_dsn: str
) -> None:
    role = f"tenant_{uuid4().hex}"
    writer = await connect()
    await writer.execute(f"create role {role}; grant usage on schema headrace to {role}")
    try:
        transaction, witness = await begin(writer, WRITE, f"set local role {role}")
        await transaction.commit()
        assert witness is not None
        assert await store.transaction_status(database, witness.xid, witness=witness) == "committed"
    finally:
        await writer.execute(f"drop owned by {role}; drop role {role}")


async def test_old_witnesses_are_removed_once_the_server_has_been_up_for_long_enough_to_be_asked(
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
    await database.fetch("delete from headrace.history")
    begun = await store.forget_commits(database, store.Forgotten(), now=later)  # history begins here
    assert begun.timeline is not None
    await database.fetch("update headrace.history set since = $1", later - timedelta(minutes=9))
    assert not (await store.forget_commits(database, begun, now=later)).more
    assert await kept(database) == [one.xid for one in left], "the server has just recovered"
    await database.fetch("update headrace.history set since = $1", now)
    await database.fetch(
        "update headrace.commits set at = $1 where xid = $2::text::xid8", now + timedelta(minutes=15), str(left[2].xid)
    )
    done = await store.forget_commits(database, begun, now=later)
    assert (done.floor, done.more) == (left[2].xid, False)
    assert await kept(database) == [left[2].xid]
    assert (await store.forget_commits(database, done, now=later)).floor == left[2].xid
    rewound = await store.forget_commits(database, done._replace(timeline=uuid4()), now=later + timedelta(hours=1))
    assert rewound.floor == left[2].xid
    assert await kept(database) == []


async def kept(database: store.Database) -> list[int]:
    """The transactions whose witnesses are there."""
    return [row[0] for row in await database.fetch("select xid::text::bigint from headrace.commits order by xid")]


async def test_without_its_witness_an_old_commit_is_known_by_its_id_only_while_nothing_was_rewound(
    database: store.Database, connect: Connect
) -> None:
    writer = await connect()
    await store.forget_commits(database, store.Forgotten())  # begins the history
    transaction, witness = await begin(writer, WRITE)
    await transaction.commit()
    assert witness is not None
    await database.fetch("delete from headrace.commits")
    old = witness._replace(at=datetime.now(UTC) - timedelta(hours=1))
    assert await store.transaction_status(database, old.xid, witness=witness) == "aborted"
    assert await store.transaction_status(database, old.xid, witness=old) == "committed"
    await database.fetch("delete from headrace.history")
    assert await store.transaction_status(database, old.xid, witness=old) == "unknown"
    with pytest.raises(InDoubt, match="look for what it wrote"):
        await was_committed(database, old, None, "a commit")
