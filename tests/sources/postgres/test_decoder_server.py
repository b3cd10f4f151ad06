"""Messages of a real server in each protocol version, decoded and compared with the server's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from headrace.sources.postgres.pgoutput import messages as m
from headrace.sources.postgres.pgoutput.decoder import Decoder
from tests.sources.postgres.walsender import Walsender

TABLES = """
    create type mood as enum ('sad', 'happy');
    create table orders (id int primary key, state text, feel mood, long text, twice int generated always as (id * 2) stored);
    alter table orders alter column long set storage external;
    create table whole (a int, b text);
    alter table whole replica identity full;
    create table nudges (id int);
    create publication everything for table orders, whole;
"""
EACH_VERSION = pytest.mark.parametrize("version", [1, 2, 3, 4])
EACH_STREAMING = pytest.mark.parametrize(("version", "streaming"), [(2, "on"), (3, "on"), (4, "on"), (4, "parallel")])
FIRST_WITH = {1: 10, 2: 14, 3: 15, 4: 16}


class Server:
    """A database and a reader of its changes."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(sql)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def reading(self, version: int, streaming: str = "off", **settings: Any) -> Iterator[Iterator[m.AnyMessage]]:
        """Return the messages of everything that is done from here on."""
        if self.connection.info.server_version < FIRST_WITH[version] * 10000:
            pytest.skip(f"This server does not know protocol {version}.")
        decoder = Decoder()
        with Walsender(
            self.dsn, "everything", version, streaming, logical_decoding_work_mem="64kB", **settings
        ) as sender:
            yield (decoder.decode(payload) for payload in sender)


@pytest.fixture
def server(empty_dsn: str) -> Iterator[Server]:
    server = Server(empty_dsn)
    with server.connection:
        server.execute(TABLES)
        yield server


def until(messages: Iterator[m.AnyMessage], last: Callable[[m.AnyMessage], bool]) -> list[m.AnyMessage]:
    read: list[m.AnyMessage] = []
    for message in messages:
        read.append(message)
        if last(message):
            return read
    raise AssertionError(read)


def is_a(kind: type) -> Callable[[m.AnyMessage], bool]:
    return lambda message: isinstance(message, kind)


def changes(messages: list[m.AnyMessage]) -> list[m.AnyMessage]:
    return [one for one in messages if isinstance(one, m.Insert | m.Update | m.Delete | m.Truncate)]


@EACH_VERSION
def test_a_transaction_is_read_in_each_version(server: Server, version: int) -> None:
    with server.reading(version) as messages:
        server.execute(
            """
            begin;
            insert into orders values (1, 'new', 'happy', repeat('x', 5000)), (2, null, 'sad', null);
            update orders set state = 'paid ☂' where id = 1;
            update orders set id = 3 where id = 2;
            insert into whole values (1, 'one');
            update whole set b = null;
            delete from whole;
            delete from orders where id = 3;
            truncate orders, whole restart identity cascade;
            commit"""
        )
        read = until(messages, is_a(m.Commit))
    ends = server.execute("select pg_current_wal_lsn() - '0/0'")
    begin, commit = read[0], read[-1]
    assert isinstance(begin, m.Begin)
    assert isinstance(commit, m.Commit)
    assert (begin.lsn, begin.at) == (commit.lsn, commit.at)
    assert begin.lsn < commit.end <= ends[0][0]
    relations = {one.name: one for one in read if isinstance(one, m.Relation)}
    orders, whole = relations["orders"], relations["whole"]
    oids = dict(server.execute("select relname, oid::int from pg_class where relname in ('orders', 'whole')"))
    assert (orders.oid, whole.oid, orders.schema) == (oids["orders"], oids["whole"], "public")
    assert (orders.identity, whole.identity) == ("d", "f")
    assert [(column.name, column.identity) for column in orders.columns] == [
        ("id", True), ("state", False), ("feel", False), ("long", False)
    ]  # fmt: skip
    assert {one.name for one in read if isinstance(one, m.Type)} == {"mood"}
    assert changes(read) == [
        m.Insert(orders.oid, [b"1", b"new", b"happy", b"x" * 5000]),
        m.Insert(orders.oid, [b"2", None, b"sad", None]),
        m.Update(orders.oid, [b"1", "paid ☂".encode(), b"happy", m.UNCHANGED], None, False),
        m.Update(orders.oid, [b"3", None, b"sad", None], [b"2", None, None, None], True),
        m.Insert(whole.oid, [b"1", b"one"]),
        m.Update(whole.oid, [b"1", None], [b"1", b"one"], False),
        m.Delete(whole.oid, [b"1", None], False),
        m.Delete(orders.oid, [b"3", None, None, None], True),
        m.Truncate((orders.oid, whole.oid), True, True),
    ]


@EACH_VERSION
def test_logical_messages_that_another_session_emits_are_read(server: Server, version: int) -> None:
    with server.reading(version) as messages:
        place = server.execute("select pg_logical_emit_message(false, 'aside', 'heard at once') - '0/0'")[0][0]
        server.execute("select pg_logical_emit_message(true, 'headrace', '\\x00ff'::bytea)")
        read = until(messages, is_a(m.Commit))
    aside = next(one for one in read if isinstance(one, m.LogicalMessage))
    assert (aside.transactional, aside.prefix, aside.content, aside.lsn) == (False, "aside", b"heard at once", place)
    inside = [one for one in read[read.index(aside) + 1 :] if isinstance(one, m.LogicalMessage)]
    assert [(one.transactional, one.prefix, one.content) for one in inside] == [(True, "headrace", b"\0\xff")]


def surviving(messages: list[m.AnyMessage]) -> list[m.Insert | m.Update | m.Delete | m.Truncate]:
    """Return the changes of a streamed transaction, without those of subtransactions that were rolled back."""
    kept: list[Any] = []
    for message in messages:
        if isinstance(message, m.StreamAbort):
            kept = [one for one in kept if one.xid != message.subxid]
        elif isinstance(message, m.Insert | m.Update | m.Delete | m.Truncate):
            kept.append(message)
    return kept


@EACH_STREAMING
def test_a_streamed_transaction_is_read_and_its_rolled_back_parts_are_reported(
    server: Server, version: int, streaming: str
) -> None:
    def fill(first: int) -> str:
        return f"insert into orders select i, 'new', 'happy', 'fill' from generate_series({first}, {first + 1999}) as i"

    with server.reading(version, streaming) as messages, psycopg.connect(server.dsn) as writer:
        writer.execute(fill(1))
        writer.execute("savepoint a")
        writer.execute(fill(10_001))
        # The server sends only flushed WAL. The commit of another session flushes everything written
        # before.
        server.execute("insert into nudges values (1)")
        read = until(
            messages, lambda one: isinstance(one, m.Insert) and one.new[0] is not None and int(one.new[0]) > 10_000
        )
        writer.execute("rollback to a")
        writer.execute("savepoint b")
        writer.execute("update orders set state = 'paid' where id <= 100")
        writer.execute("delete from orders where id > 1990")
        writer.execute("release b")
        writer.execute("select pg_logical_emit_message(true, 'headrace', 'in a piece')")
        xid = int(writer.execute("select pg_current_xact_id()::xid::text").fetchone()[0])  # type: ignore[index]
        writer.execute(fill(20_001))
        writer.commit()
        read += until(messages, is_a(m.StreamCommit))
    starts = [one for one in read if isinstance(one, m.StreamStart)]
    assert [start.first for start in starts] == [True] + [False] * (len(starts) - 1)
    assert len(starts) > 1
    assert {start.xid for start in starts} == {xid}
    assert sum(isinstance(one, m.StreamStop) for one in read) == len(starts)
    [abort] = [one for one in read if isinstance(one, m.StreamAbort)]
    assert abort.xid == xid != abort.subxid
    assert (abort.lsn is not None, abort.at is not None) == (streaming == "parallel",) * 2
    commit = read[-1]
    assert isinstance(commit, m.StreamCommit)
    assert commit.xid == xid
    [message] = [one for one in read if isinstance(one, m.LogicalMessage)]
    assert (message.prefix, message.content, message.xid) == ("headrace", b"in a piece", xid)
    relations = [one for one in read if isinstance(one, m.Relation)]
    assert {relation.name for relation in relations} == {"orders"}
    assert all(relation.xid is not None for relation in relations)

    table: dict[int, str] = {}
    for change in surviving(read):
        if isinstance(change, m.Delete):
            del table[int(change.old[0])]  # type: ignore[arg-type]
        elif isinstance(change, m.Insert | m.Update):
            table[int(change.new[0])] = change.new[1].decode()  # type: ignore[arg-type, union-attr]
    assert table == dict(server.execute("select id, state from orders"))


@EACH_STREAMING
def test_a_streamed_transaction_that_is_rolled_back_is_reported(server: Server, version: int, streaming: str) -> None:
    with server.reading(version, streaming) as messages, psycopg.connect(server.dsn) as writer:
        writer.execute("insert into whole select i, 'some text' from generate_series(1, 4000) as i")
        server.execute("insert into nudges values (1)")
        read = until(messages, is_a(m.StreamStop))
        writer.rollback()
        server.execute("insert into whole values (0, 'after')")
        # PostgreSQL 14 also sends transactions without changes of published tables, such as the nudge.
        read += until(messages, lambda one: isinstance(one, m.Insert) and one.xid is None)
        read += until(messages, is_a(m.Commit))
    [abort] = [one for one in read if isinstance(one, m.StreamAbort)]
    [start, *_] = [one for one in read if isinstance(one, m.StreamStart)]
    assert abort.xid == abort.subxid == start.xid
    [after] = surviving(read[read.index(abort) :])
    assert (after.xid, after.new) == (None, [b"0", b"after"])  # type: ignore[union-attr]


def prepared(server: Server, end: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as writer:
        writer.execute("begin")
        writer.execute("insert into whole values (1, 'one')")
        writer.execute("prepare transaction 'headrace décès'")
        writer.execute(f"{end} prepared 'headrace décès'")  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [3, 4])
def test_both_phases_of_a_commit_are_read(server: Server, version: int) -> None:
    if int(server.execute("show max_prepared_transactions")[0][0]) == 0:
        pytest.skip("This server prepares no transactions.")
    with server.reading(version, two_phase=True) as messages:
        prepared(server, "commit")
        begin, *_, insert, prepare, commit = until(messages, is_a(m.CommitPrepared))
        prepared(server, "rollback")
        *_, rolled_back = until(messages, is_a(m.RollbackPrepared))
    assert isinstance(begin, m.BeginPrepare)
    assert isinstance(insert, m.Insert)
    assert isinstance(commit, m.CommitPrepared)
    assert isinstance(rolled_back, m.RollbackPrepared)
    assert prepare == m.Prepare(begin.lsn, begin.end, begin.at, begin.xid, "headrace décès", False)
    assert (commit.xid, commit.gid) == (begin.xid, begin.gid)
    assert begin.end <= commit.lsn < commit.end
    assert rolled_back.gid == begin.gid
    assert rolled_back.xid > begin.xid
    assert rolled_back.prepare_end < rolled_back.end
    assert rolled_back.prepared_at <= rolled_back.at


def test_a_streamed_transaction_that_is_prepared_is_reported_as_such(server: Server) -> None:
    if int(server.execute("show max_prepared_transactions")[0][0]) == 0:
        pytest.skip("This server prepares no transactions.")
    with server.reading(3, "on", two_phase=True) as messages, psycopg.connect(server.dsn, autocommit=True) as writer:
        writer.execute("begin")
        writer.execute("insert into whole select i, 'some text' from generate_series(1, 4000) as i")
        writer.execute("prepare transaction 'headrace_streamed'")
        read = until(messages, is_a(m.Prepare))
        writer.execute("commit prepared 'headrace_streamed'")
        until(messages, is_a(m.CommitPrepared))
    prepare = read[-1]
    assert isinstance(prepare, m.Prepare)
    assert (prepare.streamed, prepare.gid) == (True, "headrace_streamed")
    assert len(surviving(read)) == 4000


@EACH_VERSION
def test_the_origin_of_a_transaction_is_read(server: Server, version: int) -> None:
    name = server.connection.info.dbname
    server.execute(f"select pg_replication_origin_create('{name}')")
    try:
        with server.reading(version) as messages, psycopg.connect(server.dsn) as writer:
            # A session holds the name until it ends.
            writer.execute(f"select pg_replication_origin_session_setup('{name}')")
            writer.execute("select pg_replication_origin_xact_setup('0/A1', now())")
            writer.execute("insert into whole values (1, 'x')")
            writer.commit()
            writer.execute("select pg_replication_origin_session_reset()")
            read = until(messages, is_a(m.Commit))
    finally:
        server.execute(f"select pg_replication_origin_drop('{name}')")
    [origin] = [one for one in read if isinstance(one, m.Origin)]
    assert origin == m.Origin(0xA1, name)
