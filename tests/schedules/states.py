"""The states that schedules start from. A state is a database, which is put back after each schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace import store
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.schedules import gate
from tests.schedules.operations import lease_sql, owner_id, publish_sql, settle_sql
from tests.support import servers

_TABLES = (
    "streams", "segments", "scheduled", "message_ids", "unique_keys", "erasures", "consumers", "cursors", "frozen_holes", "leases",
    "acks", "owners", "parked", "tails", "dead_letters", "replays", "cancellations", "gaps", "waiting", "completions",
)  # fmt: skip
"""The tables that operations change."""


@dataclass
class State:
    """What a schedule starts from."""

    name: str
    dsn: str
    leases: dict[str, tuple[int, list[int]]]


Connection = psycopg.Connection[Any]
Plant = Callable[[Connection], None]


def _lease(connection: Connection, owner: str, limit: int = 100, seconds: float = 0) -> tuple[int, list[int]]:
    row = connection.execute(lease_sql(owner, limit, seconds).encode()).fetchone()
    assert row is not None
    assert row[0]["lease_id"], f"{owner} gets nothing"
    return row[0]["lease_id"], row[0]["seqs"]


def _settle(connection: Connection, lease: tuple[int, list[int]], outcome: str, *seqs: int) -> None:
    lost = connection.execute(settle_sql(lease[0], list(seqs) or lease[1], outcome).encode()).fetchall()
    assert not lost, f"{lost} of {lease} are lost"


def quiet(connection: Connection) -> None:
    """Two messages in flight, two that nobody has read, and nothing in the way."""
    connection.execute(publish_sql("a", "b").encode())
    _lease(connection, "ann")
    connection.execute(publish_sql("a", "c").encode())


def idle(connection: Connection) -> None:
    """All is settled."""
    connection.execute(publish_sql("a", "b").encode())
    _settle(connection, _lease(connection, "ann"), "whole")


def busy(connection: Connection) -> None:
    """Two owners, of which one is about to expire, retries, waiting and blocked keys, dead letters, and unread messages."""
    # 1 c: bob, about to expire. 2 a, 3 b: ann. 4 d: retries, 5 d behind it. 6 e: dead. 7 f: blocks its key, 8 f behind it.
    # 9 a, 10 c: waiting. 11 d, 12 g: unread.
    connection.execute(publish_sql(*"cabddeff").encode())
    _lease(connection, "bob", 1, -25)
    _lease(connection, "ann", 2)
    rest = _lease(connection, "gus")
    _settle(connection, rest, "reject", 6)
    _settle(connection, rest, "release", 4, 5, 8)
    _settle(connection, rest, "retry", 7)
    while not connection.execute("select from headrace_internal.dead_letters where seq = 7").fetchall():
        again = _lease(connection, "gus")
        _settle(connection, again, "retry", 7)
        _settle(connection, again, "release", *[seq for seq in again[1] if seq != 7])
    connection.execute(publish_sql(*"ac").encode())
    last = _lease(connection, "gus")
    _settle(connection, last, "retry", 4)
    _settle(connection, last, "release", *[seq for seq in last[1] if seq != 4])
    connection.execute(publish_sql(*"dg").encode())


def spread(connection: Connection) -> None:
    """A run of one key that spans two leases of an owner, and its later messages unread."""
    connection.execute(publish_sql("a", "b").encode())
    _lease(connection, "bob", 1, -25)
    _lease(connection, "ann", 1)
    connection.execute(publish_sql("a", "a").encode())
    _lease(connection, "bob", 1)
    connection.execute(publish_sql("a", "b").encode())


def dead(connection: Connection) -> None:
    """A dead letter far below what is in flight."""
    connection.execute(publish_sql("e", "a").encode())
    lease = _lease(connection, "gus")
    _settle(connection, lease, "reject", 1)
    _settle(connection, lease, "ack", 2)
    for _ in range(2):
        connection.execute(publish_sql("b", "c").encode())
        _settle(connection, _lease(connection, "gus"), "whole")
    connection.execute(publish_sql("e", "a").encode())
    _lease(connection, "ann")


def segments(connection: Connection) -> None:
    """As quiet, in segments of two messages."""
    for (relation,) in connection.execute("delete from headrace_internal.segments returning relation").fetchall():
        connection.execute(f"drop table {relation}".encode())
    connection.execute("select headrace_internal.add_segment(1, i * 2 + 1, i * 2 + 3) from generate_series(0, 4) as i")
    connection.execute("select headrace_internal.add_segments_ahead(1, 11, 1000)")
    quiet(connection)


def paused(connection: Connection) -> None:
    quiet(connection)
    connection.execute("select headrace_internal.pause(p_consumer => 1, p_until => null)")


STATES: dict[str, tuple[Callable[[Connection], None], dict[str, Any], dict[str, Any]]] = {
    "idle": (idle, {}, {}),
    "quiet": (quiet, {}, {}),
    "busy": (busy, {}, {"on_exhausted": "block"}),
    "spread": (spread, {}, {}),
    "dead": (dead, {}, {}),
    "paused": (paused, {}, {}),
    "old": (quiet, {"retain_up_to": 3600.0}, {}),
    "segments": (segments, {"retain_up_to": 3600.0}, {}),
    "unordered": (quiet, {}, {"ordered": False}),
    "history": (quiet, {}, {"history": 3600.0}),
    "compacted": (quiet, {"one_message_per_key": True}, {}),
    "compacted_old": (quiet, {"one_message_per_key": True, "retain_up_to": 3600.0}, {}),
}


def save(connection: Connection) -> None:
    """Write the function that puts the state back."""
    connection.execute("create schema saved")
    deletes, inserts = [], []
    for table in [*(f"headrace_internal.{name}" for name in _TABLES), "headrace_streams.orders", "gate.effects"]:
        name = table.rpartition(".")[2]
        deletes.append(f"delete from {table}")
        if connection.execute(f"select count(*) from {table}".encode()).fetchone() != (0,):
            connection.execute(f"create table saved.{name} as table {table}".encode())
            inserts.append(f"insert into {table} overriding system value select * from saved.{name}")
    connection.execute("create table saved.relation as select 'headrace_streams.orders'::regclass::oid as oid")
    connection.execute(
        "create table saved.appenders as select proname, prosrc from pg_proc where pronamespace = 'headrace_streams'::regnamespace"
    )
    sequences = connection.execute(
        "select schemaname || '.' || quote_ident(sequencename), last_value from pg_sequences where schemaname like 'headrace%'"
    ).fetchall()
    values = [f"setval('{sequence}', {last or 1}, {last is not None})" for sequence, last in sequences]
    connection.execute(
        f"""create function gate.restore() returns void language plpgsql as $$ begin
            perform gate.rebuild();
            {_together(deletes)};
            {_together(inserts)};
            perform {", ".join(values)};
        end $$""".encode()
    )


def _together(statements: list[str]) -> str:
    """Return one statement that does what all of these do, for a third of the time."""
    *others, last = statements
    return f"with {', '.join(f'_{place} as ({text})' for place, text in enumerate(others))} {last}"


@contextmanager
def prepared(server_dsn: str, name: str, plant: Plant | None = None) -> Iterator[State]:
    """Return a state, in a database of its own whose functions have gates.

    Args:
        server_dsn: a superuser's URL of the server.
        name: that of the state.
        plant: changes the functions before they get gates.
    """
    build, policy, settings = STATES[name]
    with servers.clone(server_dsn, servers.ensure_template(server_dsn)) as dsn:

        async def declare() -> None:
            async with servers.opened(dsn) as database:
                await store.create_stream(database, StreamSpec(name="orders", **policy))
                spec = {"stream": "orders", "name": "ship", "max_deliver": 5, "backoff": (0.0,), **settings}
                await store.declare_consumer(database, ConsumerSpec(**spec))

        servers.run(declare())
        with psycopg.connect(dsn, autocommit=True) as connection:
            gate.install(connection)
            connection.execute(
                "create table gate.settings as select headrace_internal.settings_of_consumer(1) as settings,"
                " headrace_internal.stream_settings(s) as policy from headrace_internal.streams as s"
            )
            if connection.execute("select count(*) from headrace_internal.history").fetchone() == (0,):
                connection.execute("select headrace_internal.begin_timeline()")
            connection.execute("select setseed(0)")
            build(connection)
            if plant:
                plant(connection)
            gate.rewrite_functions(connection)
            save(connection)
            found = connection.execute(
                """select owner::text, lease_id, array(select seq from headrace_internal.messages_of_lease(l))
                   from headrace_internal.leases as l order by lease_id desc"""
            ).fetchall()
        names = {owner_id(owner): owner for owner in ("ann", "bob")}
        yield State(name, dsn, {names[owner]: (lease, seqs) for owner, lease, seqs in found if owner in names})
