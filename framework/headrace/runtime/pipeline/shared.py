"""The resources that the consumers of one process share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace import store
from headrace.flow.priority import Priorities
from headrace.model.clock import SYSTEM_TIME, Time
from headrace.runtime.calls import Witness
from headrace.runtime.handlers.dependencies import Dependencies
from headrace.runtime.handlers.middleware import Middleware
from headrace.runtime.instruments import Instruments
from headrace.runtime.leasing.shared_reads import SharedReads
from headrace.runtime.leasing.subscriptions import Subscriptions
from headrace.runtime.loop_watch import LoopWatch
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.pipeline.timings import Timings
from headrace.runtime.settling.dead_letters import DeadLetterHook
from headrace.runtime.settling.history_watch import HistoryWatch


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that each pipeline is given.

    Args:
        database: an open database.
        publisher: publishes for handlers.
        subscriptions: the subscriptions of this process's idle consumers.
        reads: the reads that consumers of one stream share.
        shutdown_timeout: seconds that handlers have to finish when a pipeline stops.
        dependencies: what handlers take besides their messages.
        middleware: what runs around handlers, the outermost first.
        dead_letter_hooks: what is called for each message that becomes a dead letter.
        instruments: telemetry, or None when it is off.
        surveys: whether this app surveys its own database for telemetry, which knows one database only.
        priorities: the priority ranks of the consumers.
        time: the clocks.
        witness: the test kit's hooks, or None.
        loop_watch: watches the event loop. None in tests that pass their own time.
        timings: timings that only tests change.
        history_watch: has the leases verified in a new history of the database.
    """

    database: store.Database
    publisher: Publisher
    subscriptions: Subscriptions
    shutdown_timeout: float
    dependencies: Dependencies
    middleware: Sequence[Middleware] = ()
    dead_letter_hooks: Sequence[DeadLetterHook] = ()
    instruments: Instruments | None = None
    surveys: bool = True
    priorities: Priorities = msgspec.field(default_factory=Priorities)
    reads: SharedReads = msgspec.field(default_factory=SharedReads)
    time: Time = SYSTEM_TIME
    witness: Witness | None = None
    loop_watch: LoopWatch | None = None
    timings: Timings = Timings()
    history_watch: HistoryWatch = msgspec.field(default_factory=HistoryWatch)
