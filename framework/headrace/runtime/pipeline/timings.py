"""Timings of a pipeline that only tests change."""

from __future__ import annotations

import msgspec

from headrace.flow.demand import JUDGING
from headrace.flow.governor import INTERVAL
from headrace.flow.in_flight import LINGER


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of a pipeline, in seconds.

    Attributes:
        judging: how long the evaluation of a condition may take in one lease call.
        linger: how long the acks of a lease wait for the rest of it.
        sampling: the interval of the governor's samples.
        last_settle: how long a drain may settle after the handlers are done or stopped.
    """

    judging: float = JUDGING
    linger: float = LINGER
    sampling: float = INTERVAL
    last_settle: float = 3.0
