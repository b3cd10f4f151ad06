"""Timings of a pipeline. They are not settings. Tests use others."""

from __future__ import annotations

import msgspec

from headrace.flow.governor import INTERVAL
from headrace.flow.in_flight import GATHER, LINGER
from headrace.runtime.leasing.timings import LEASE_TIMINGS, LeaseTimings
from headrace.runtime.loop_watch import WATCH_TIMINGS, WatchTimings


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of a pipeline, in seconds.

    Attributes:
        leasing: the timings of lease calls.
        linger: how long the acks of a lease wait for the rest of it.
        gather: how long finished leases gather after a small settlement. Not in the test kit, whose clock stands still.
        sampling: the interval of the governor's samples.
        last_settle: how long a drain may settle after the handlers are done or stopped.
        teardown: how long the teardown of dependencies may take after a failure or a cancellation.
        watch: the timings of the loop watch.
    """

    leasing: LeaseTimings = LEASE_TIMINGS
    linger: float = LINGER
    gather: float = GATHER
    sampling: float = INTERVAL
    last_settle: float = 3.0
    teardown: float = 5.0
    watch: WatchTimings = WATCH_TIMINGS
