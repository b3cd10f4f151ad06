"""The figures of all streams and consumers at one moment, see `sql/functions/watching/live.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from headrace.store.database.database import Executor


class LiveFigures(msgspec.Struct, frozen=True):
    """The figures that change all the time, by the numbers of streams and consumers in the database.

    Attributes:
        at: the time by the database's clock.
        drawn: the last seq drawn in each stream.
        streams_of: the stream of each consumer.
        positions: the cursor of each consumer.
        leases: of consumers that hold any: the messages in flight, the owners, and a seq below which none is in flight.
        paused: until when consumers are paused. None for a pause without an end.
        full: the streams to which publishing is refused.
        with_holes: the consumers that wait for late commits.
    """

    at: datetime
    drawn: dict[int, int]
    streams_of: dict[int, int]
    positions: dict[int, int]
    leases: dict[int, tuple[int, int, int]]
    paused: dict[int, datetime | None]
    full: frozenset[int]
    with_holes: frozenset[int] = frozenset()


class LiveCounts(msgspec.Struct, frozen=True):
    """What takes a count, of one consumer. `lowest`: the lowest seq that waits, blocked or parked."""

    parked: int = 0
    blocked: int = 0
    replaying: int = 0
    dead_letters: int = 0
    missed: int = 0
    lowest: int | None = None

    @property
    def any(self) -> bool:
        """Whether anything waits or is dead."""
        return bool(self.parked or self.blocked or self.replaying or self.dead_letters)


class LiveSize(msgspec.Struct, frozen=True):
    """The number of messages of a stream, its size in bytes, the seq of its last message, and the messages for later."""

    messages: int
    size: int
    last_seq: int
    scheduled: int


class CatalogStream(msgspec.Struct, frozen=True):
    """A stream and how long it keeps messages. `number` is the one in the database, and `id` that of the API."""

    number: int
    id: str
    name: str
    retention: str
    retain_up_to: float | None
    max_storage: int | None
    one_message_per_key: bool


class CatalogConsumer(msgspec.Struct, frozen=True):
    """A consumer. `stream` is the number of its stream. `filtered`: whether it has filters or a condition."""

    number: int
    id: str
    stream: int
    name: str
    push: bool
    filtered: bool


class ServerFacts(msgspec.Struct, frozen=True):
    """The version of Postgres, the size of the database in bytes, the time by its clock, and the role of the caller, as the
    audit log has it."""

    version: str
    size: int
    at: datetime
    role: str


async def live_figures(executor: Executor) -> LiveFigures:
    """The figures of all streams and consumers, in one statement."""
    row = await executor.fetchrow("select * from headrace_internal.live_figures()")
    leases = zip(*(row[name] or () for name in ("held", "owners", "lowest")), strict=True)
    return LiveFigures(
        row["at"],
        _pairs(row, "streams", "drawn"),
        _pairs(row, "consumers", "of_streams"),
        _pairs(row, "consumers", "positions"),
        dict(zip(row["leasing"] or (), leases, strict=True)),
        dict(zip(row["paused"] or (), row["paused_until"] or (), strict=True)),
        frozenset(row["full_streams"] or ()),
        frozenset(row["with_holes"] or ()),
    )


async def live_counts(executor: Executor, consumers: Sequence[int]) -> dict[int, LiveCounts]:
    """What takes a count, of these consumers. Counts stop at 100,000."""
    rows = await executor.fetch("select * from headrace_internal.live_counts($1)", list(consumers))
    return {row[0]: LiveCounts(*row[1:]) for row in map(tuple, rows)}


async def live_sizes(executor: Executor, streams: Sequence[int]) -> dict[int, LiveSize]:
    """The sizes of these streams."""
    rows = await executor.fetch("select * from headrace_internal.live_sizes($1)", list(streams))
    return {row[0]: LiveSize(*row[1:]) for row in map(tuple, rows)}


async def live_times(
    executor: Executor, wanted: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], tuple[datetime | None, int]]:
    """For pairs of a stream and a seq: when the first message from there on was published, None if there is none, and
    the seq of the stream's last message."""
    rows = await executor.fetch(
        "select * from headrace_internal.live_times($1, $2)", [one for one, _ in wanted], [seq for _, seq in wanted]
    )
    return {(row[0], row[1]): (row[2], row[3]) for row in rows}


async def live_catalog(executor: Executor) -> tuple[list[CatalogStream], list[CatalogConsumer]]:
    """All streams by name, and all consumers."""
    row = await executor.fetchrow("select * from headrace_internal.live_catalog()")
    return (
        msgspec.json.decode(row["streams"], type=list[CatalogStream]),
        msgspec.json.decode(row["consumers"], type=list[CatalogConsumer]),
    )


async def server_facts(executor: Executor) -> ServerFacts:
    """The version of Postgres, the size of the database, its clock, and the role of the caller."""
    row = await executor.fetchrow(
        """select current_setting('server_version') as version, pg_database_size(current_database()) as size, clock_timestamp() as at,
                  case current_setting('role') when 'none' then session_user else current_setting('role') end as role"""
    )
    return ServerFacts(row["version"].split()[0], row["size"], row["at"], row["role"])


def _pairs(row: Any, keys: str, values: str) -> dict[int, int]:
    return dict(zip(row[keys] or (), row[values] or (), strict=True))
