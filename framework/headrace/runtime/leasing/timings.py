"""Timings of lease calls and of the waits between them. They are not settings. Tests use others."""

from __future__ import annotations

import msgspec

from headrace.flow.demand import POLL_INTERVALS, ListenPolicy, PollIntervals


class LeaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of the lease calls of a process, in seconds.

    Attributes:
        judging: how long the evaluation of a condition may take in one lease call. A slower
            condition raises `FilterTooSlow`.
        polls: bounds of the poll interval.
        shortest_term, longest_term: bounds of a subscription's term. The term grows with the number
            of idle consumers.
        least_share, leaving: when a process stops listening, see `ListenPolicy`.
    """

    judging: float = 5.0
    polls: PollIntervals = POLL_INTERVALS
    shortest_term: float = 10.0
    longest_term: float = 60.0
    least_share: float = ListenPolicy.SHARE
    leaving: float = ListenPolicy.LEAVING


LEASE_TIMINGS = LeaseTimings()
