"""The live state of streams, consumers, sources and processes, and what its figures are called.

A figure is described once, where its field is declared: its name, its unit and how it is shown. The JSON of the API, the
tables, details and help of `headrace observe`, and the tables and details of the console follow from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Literal, get_type_hints

from msgspec import Meta, Struct

from headrace.model.capture import Backfill, CaptureState
from headrace.model.records import ConsumerAtWork
from headrace.model.sources import SourceInfo
from headrace.model.watching.diagnosis import Cause

ConsumerState = Literal["", "paused", "breaker", "blocked", "failing", "growing", "unattended", "full"]
"""The state of a consumer, or of a stream, which is `full` or nothing."""

SourceState = CaptureState | Literal["", "alarm", "degraded"]
"""The state of a source. `alarm`: the capture runs, but its slot has a problem. `degraded`: it runs, but changes failed
to become messages, or it has a note, such as a table that is gone. Empty for a source that captures no tables.
"""

Unit = Literal["count", "seq", "rate", "bytes", "seconds"]


class Figure(Struct, frozen=True, kw_only=True):
    """How a field of a row is shown.

    Attributes:
        title: its name in the console.
        short: its name in a terminal.
        unit: of its values. `rate` is per second.
        about: what it counts, for help. Empty if the name says it.
        tone: the color of values other than 0.
        sort: the name by which the API sorts. None if it doesn't.
        drop: figures with a higher number are left out first in a narrow terminal. Those with 0 never are.
    """

    title: str
    short: str
    unit: Unit
    about: str
    tone: Literal["", "warn", "bad", "stuck"]
    sort: str | None
    drop: int


def _figure(
    title: str,
    short: str,
    unit: Unit = "count",
    *,
    about: str = "",
    tone: Literal["", "warn", "bad", "stuck"] = "",
    sort: str | None = None,
    drop: int = 0,
) -> Meta:
    figure = Figure(title=title, short=short, unit=unit, about=about, tone=tone, sort=sort, drop=drop)
    units = {"rate": "Per second. null at first.", "bytes": "In bytes. null while it is not known."}
    description = about[:1].upper() + about[1:] + "." if about else units.get(unit)
    return Meta(description=description, extra={"figure": figure})


class StreamRow(Struct, kw_only=True):
    """The live state of a stream."""

    name: str
    id: str
    state: Annotated[ConsumerState, Meta(description="`full` if publishing is refused.")]
    publish_rate: Annotated[
        float | None,
        _figure(
            "Published/s",
            "in/s",
            "rate",
            sort="rate",
            about="messages published per second, over 3 updates, with rollbacks",
        ),
    ]
    messages: Annotated[int | None, _figure("Messages", "messages", sort="messages", about="estimated above 10,000")]
    size: Annotated[int | None, _figure("Size", "size", "bytes", sort="size")]
    last_seq: Annotated[int, _figure("Last seq", "last seq", "seq", drop=3)]
    consumers: Annotated[int, _figure("Consumers", "cons", drop=1)]
    scheduled: Annotated[int | None, _figure("Scheduled", "later", drop=4, about="messages to be published later")]
    lag: Annotated[int, _figure("Lag", "lag", sort="lag", drop=6, about="the largest lag of its consumers")]
    dead_letters: Annotated[int, _figure("Dead letters", "dead", tone="bad", drop=5)]
    retention: str
    retain_up_to: Annotated[float | None, Meta(description="Seconds. null for no limit.")]
    max_storage: Annotated[int | None, Meta(description="Bytes. null for no limit.")]
    one_message_per_key: bool
    rates: Annotated[list[float], Meta(description="The last rates, one for each snapshot.")]
    database: str | None


class ConsumerRow(Struct, kw_only=True):
    """The live state of a consumer."""

    stream: str
    name: str
    id: str
    kind: Literal["pull", "push"]
    state: Annotated[ConsumerState, Meta(description="The most important thing about it. Empty if all is well.")]
    reason: Annotated[str, Meta(description="Why there are so many actors.")]
    cause: Annotated[Cause, Meta(description="Why it is behind. Empty if it is not.")]
    why: Annotated[str, Meta(description="The cause and the figures, as sentences. Empty if it is not behind.")]
    position: Annotated[int, Meta(description="The cursor.")]
    lag: Annotated[
        int, _figure("Lag", "lag", sort="lag", about="seqs after the position: an upper bound of what is pending")
    ]
    lag_seconds: Annotated[
        float | None,
        _figure(
            "Behind", "oldest", "seconds", sort="lag_seconds", drop=6, about="the age of the oldest unfinished message"
        ),
    ]
    finish_rate: Annotated[
        float | None,
        _figure("Finished/s", "done/s", "rate", sort="rate", about="finished or skipped by the filter, per second"),
    ]
    in_flight: Annotated[int, _figure("In flight", "flight", sort="in_flight", drop=2, about="leased and not settled")]
    parked: Annotated[
        int,
        _figure("Parked", "parked", tone="warn", drop=3, about="waiting for an attempt, or behind one of their key"),
    ]
    blocked: Annotated[
        int, _figure("Blocked", "block", tone="stuck", drop=1, about="waiting behind a dead letter of their key")
    ]
    dead_letters: Annotated[int, _figure("Dead letters", "dead", tone="bad", sort="dead_letters")]
    actors: Annotated[int | None, Meta(description="In all processes. null if none reports it.")]
    busy_actors: int
    missed: Annotated[int, Meta(description="How many messages retention removed before it got them.")]
    paused_until: Annotated[datetime | None, Meta(description="null if it is not paused, or until it is resumed.")]
    rates: Annotated[list[float], Meta(description="The last rates, one for each snapshot.")]
    lags: Annotated[
        list[float], Meta(description="The last lags, one for each snapshot. Lists of consumers leave them out.")
    ]
    database: str | None


class ProcessRow(Struct, kw_only=True):
    """A process. `actors`, `busy_actors` and `rate` are those of all its consumers."""

    process_id: str
    host: str
    pid: int
    kind: str
    version: str
    started_at: datetime
    seen_at: datetime
    silent_seconds: Annotated[float, Meta(description="Since its last heartbeat.")]
    gone: bool
    uptime_seconds: Annotated[float, _figure("Up for", "up", "seconds")]
    actors: int
    busy_actors: int
    in_flight: int
    rate: Annotated[float | None, _figure("Handled/s", "msg/s", "rate")]
    requests: Annotated[float | None, _figure("Requests/s", "req/s", "rate", about="of its server")]
    requests_in_flight: Annotated[int | None, Meta(description="Of its server.")]
    waiting: Annotated[int | None, _figure("Calls that wait", "waiting", drop=2, about="for messages, at its server")]
    connections: Annotated[int, _figure("Connections", "conns", drop=2)]
    blocked: Annotated[str | None, Meta(description="The code that blocks its event loop, or null.")]
    consumers: list[ConsumerAtWork]
    more_consumers: int


class SourceRow(Struct, kw_only=True):
    """The live state of a source."""

    id: str
    name: str
    kind: str
    stream: str
    state: SourceState
    reason: str | None
    mend: Annotated[str | None, Meta(description="The statement or command that fixes it.")]
    since: datetime | None
    changes_rate: Annotated[float | None, _figure("Changes/s", "chg/s", "rate", about="captured, over 3 updates")]
    captured: int
    behind_bytes: Annotated[int | None, _figure("Behind", "behind", "bytes", about="WAL that is not captured yet")]
    wal_held_bytes: Annotated[
        int | None, _figure("WAL held", "WAL held", "bytes", about="that the captured server keeps for the slot")
    ]
    failures: Annotated[int, _figure("Failed", "fail", tone="bad", about="changes that could not become messages")]
    tables: list[str]
    backfills: Annotated[list[Backfill], Meta(description="Those that are queued or running.")]
    rates: Annotated[list[float], Meta(description="The last rates, one for each reading.")]
    info: Annotated[SourceInfo, Meta(description="Its settings, and all that is known of its capture.")]
    database: str | None


class LiveSnapshot(Struct, kw_only=True):
    """The live state of everything at one moment."""

    at: Annotated[datetime, Meta(description="By the clock of the database.")]
    streams: list[StreamRow]
    consumers: list[ConsumerRow]
    processes: list[ProcessRow]
    sources: Annotated[list[SourceRow], Meta(description="Those with problems first.")]
    unavailable: Annotated[list[str], Meta(description="The further databases that did not answer.")]
    error: Annotated[
        str | None,
        Meta(description="Why the database could not be read, so that this is the last state. null while it can."),
    ]


@cache
def figures(row: type[Struct]) -> Mapping[str, Figure]:
    """Return the figures of a kind of rows, by the names of their fields, in the order in which they are shown."""
    found = {}
    for name, hint in get_type_hints(row, include_extras=True).items():
        for one in getattr(hint, "__metadata__", ()):
            if isinstance(one, Meta) and one.extra and "figure" in one.extra:
                found[name] = one.extra["figure"]
    return found


ROWS: Mapping[str, type[Struct]] = {
    "stream": StreamRow,
    "consumer": ConsumerRow,
    "process": ProcessRow,
    "source": SourceRow,
}
"""The kinds of rows that have figures."""
