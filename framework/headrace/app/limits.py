"""The timings and sizes of a service. They are not settings. Tests use smaller ones."""

from __future__ import annotations

import msgspec

from headrace.app.heartbeats import MAX_CONSUMERS
from headrace.app.readiness import MAX_UNANSWERED
from headrace.runtime.maintenance.janitor import JANITOR_TIMINGS, JanitorTimings


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timings in seconds, and sizes, of the service of one process.

    Attributes:
        listen_check: interval of the checks whether this process should listen for notifications.
        unsubscribed_check: average interval of the checks for consumers without any subscribed
            process, while this one doesn't listen.
        unanswered: how long a consumer's queries may fail before it is not ready.
        reported_consumers: the largest number of consumers whose statistics a heartbeat reports.
        janitor: the timings of the janitor.
    """

    listen_check: float = 0.5
    unsubscribed_check: float = 5.0
    unanswered: float = MAX_UNANSWERED
    reported_consumers: int = MAX_CONSUMERS
    janitor: JanitorTimings = JANITOR_TIMINGS


SERVICE_LIMITS = ServiceLimits()
