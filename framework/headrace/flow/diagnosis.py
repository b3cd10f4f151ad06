"""Why a consumer is behind, in a sentence with the figures that show it.

There is one such sentence, for the console, `headrace observe`, the command line and the API. `diagnose` finds the cause.
The causes are tried in an order: what stops a consumer comes before what slows it down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from headrace.flow.observed import at_work
from headrace.model.records import ConsumerAtWork, Percentiles
from headrace.model.watching.diagnosis import Cause, Diagnosis, Waiting
from headrace.model.watching.reasons import OUTRANKED, RATE_LIMITED

BUSY = 0.8
"""The share of the actors that work if they are what limits a consumer."""

MOST = 0.5
"""The share of what waits that belongs to one key, or has failed, if that is why the consumer is behind."""

LATE = 5.0
"""The age in seconds of the oldest unfinished message from which on a consumer that works is behind."""

FEWEST = 20
"""The least number of messages in which a key can have most of them."""

WINDOW = 10_000
"""The number of parked messages at which a lease call stops reading ahead, see `take_parked`."""


_NOTHING = Waiting()


class Situation(Struct, frozen=True, kw_only=True):
    """The figures of a consumer.

    Attributes:
        lag: seqs after the position.
        age: of the oldest message that is not finished, in seconds. None if it is not known.
        parked, blocked, replaying: messages below the position that wait.
        in_flight: messages that are leased.
        owners: of the leases, processes or HTTP clients.
        paused: whether it is paused.
        paused_until: when the pause ends. None if it is not known or has no end.
        reports: what the running processes report of it.
        event_loop: one of them whose event loop is blocked. What blocks it may be of a stream that the reader may not see.
        publish_rate, finish_rate: per second. None if not known.
        waiting: a sample of what waits. None if there is none yet.
        unmatched: how many of the stream's last messages were examined, if its filters match none of them. Else 0.
    """

    lag: int
    age: float | None = None
    parked: int = 0
    blocked: int = 0
    replaying: int = 0
    in_flight: int = 0
    owners: int = 0
    paused: bool = False
    paused_until: datetime | None = None
    reports: Sequence[ConsumerAtWork] = ()
    event_loop: str | None = None
    publish_rate: float | None = None
    finish_rate: float | None = None
    waiting: Waiting | None = None
    unmatched: int = 0

    @property
    def waits(self) -> int:
        """How many messages wait, at most."""
        in_lanes = sum(report.waiting for report in self.reports)
        return self.lag + self.parked + self.blocked + self.replaying + in_lanes


def diagnose(one: Situation) -> Diagnosis:
    """Return why a consumer is behind."""
    cause, sentence = _cause(one)
    return Diagnosis(cause=cause, text=" ".join([sentence, *_figures(one, cause)]).strip())


def _cause(one: Situation) -> tuple[Cause, str]:
    sample = one.waiting or _NOTHING
    if one.paused:
        end = "a user resumes it" if one.paused_until is None else f"{one.paused_until:%Y-%m-%d %H:%M:%S} UTC"
        return "paused", f"It is paused until {end}."
    if broken := [report for report in one.reports if report.breaker in ("open", "half-open")]:
        return "breaker", _breaker(broken, len(one.reports))
    if one.blocked:
        blocked = f"{_count(one.blocked)} behind dead letters that block their keys. Redrive or purge these."
        return "blocked", f"{blocked} {_slowed(one, sample)[1] if one.lag else ''}".strip()
    if not one.waits:
        if one.unmatched:
            return "filters", f"None of the last {one.unmatched:,} messages of its stream matches its filters."
        if sample.holes:
            return "open_transaction", _open_transactions(sample.holes)
        return "", ""
    if not one.owners and not one.reports and not one.finish_rate:
        return "unattended", f"{_count(one.waits)}, and no process works on them."
    if one.event_loop is not None:
        return "event_loop", f"A handler blocks the event loop of {one.event_loop}, so nothing else runs there."
    return _slowed(one, sample) if one.age is None or one.age >= LATE else ("", "")


def _slowed(one: Situation, sample: Waiting) -> tuple[Cause, str]:
    """The cause of a consumer that nothing stops."""
    work = at_work(one.reports)
    if sample.retries and (one.parked >= one.waits * MOST or one.parked >= WINDOW):
        return "failing", f"Its messages fail: {_retries(sample)} {_last_error(sample)}"
    if work.reason.startswith(RATE_LIMITED):
        return "rate_limit", f"Its rate limit of {work.reason.removeprefix(RATE_LIMITED)} holds it back."
    if work.reason == OUTRANKED:
        return "priority", "Consumers of higher priority in its process go first."
    busy = work.actors is not None and work.busy >= max(work.actors * BUSY, 1)
    if sample.key is not None and not busy and sample.examined >= FEWEST and sample.of_key >= sample.examined * MOST:
        share = sample.of_key / sample.examined
        return "key", f"{share:.0%} of what waits has the key {sample.key}, whose messages are handled in order."
    if one.finish_rate and one.publish_rate is not None and one.finish_rate > one.publish_rate * 1.1:
        seconds = one.waits / (one.finish_rate - one.publish_rate)
        return "catching_up", f"It is catching up, in about {_duration(seconds)} at this rate."
    if busy:
        return "busy", "Nearly all of its actors are busy."
    if work.actors is None:
        return "other", f"{_count(one.waits)}. The clients that receive them hold {one.in_flight:,} others."
    return "other", f"{_count(one.waits)}."


def _breaker(broken: Sequence[ConsumerAtWork], processes: int) -> str:
    worst = max(broken, key=lambda one: (one.breaker == "open", one.breaker_failures))
    where = "" if processes == len(broken) else f" in {len(broken)} of {processes} processes"
    failures = f" after {worst.breaker_failures:,} failures in a row" if worst.breaker_failures else ""
    why = "" if worst.breaker_reason is None else f", the last of them: {_line(worst.breaker_reason)}"
    probe = "It is trying one message now."
    if worst.breaker == "open" and worst.breaker_left is not None:
        probe = f"It tries one message in {_duration(worst.breaker_left)}."
    return f"Its circuit breaker is open{where}{failures}{why}. {probe}"


def _figures(one: Situation, cause: Cause) -> Iterator[str]:
    """The figures beside the cause."""
    if cause in ("", "filters", "open_transaction"):
        return
    if one.publish_rate is not None and one.finish_rate is not None:
        yield f"{_rate(one.publish_rate)}/s are published, and {_rate(one.finish_rate)}/s finished."
    work = at_work(one.reports)
    if cause in ("paused", "breaker", "unattended", "event_loop"):
        return
    if work.actors is not None:
        why = f" ({work.reason})" if work.reason and cause in ("key", "busy", "other") else ""
        yield f"{work.busy:,} of {work.actors:,} actors are busy{why}."
    slowest = max((report.durations for report in one.reports if report.durations), key=lambda d: d.p95, default=None)
    if slowest is not None:
        yield _durations(slowest)
    if cause != "failing" and one.waiting is not None and one.waiting.retries:
        yield f"{_retries(one.waiting)} {_last_error(one.waiting)}"


def _durations(found: Percentiles) -> str:
    return f"A message takes {_short(found.p50)} (median), {_short(found.p95)} (95 %), {_short(found.p99)} (99 %)."


def _retries(sample: Waiting) -> str:
    return f"{_count(sample.retries)} for a retry."


def _last_error(sample: Waiting) -> str:
    where = "" if sample.failed_by is None else f" in {sample.failed_by}"
    return f"The last error{where}: {_line(sample.error or 'none was given')}."


def _open_transactions(holes: int) -> str:
    ranges = "1 range of seqs belongs" if holes == 1 else f"{holes:,} ranges of seqs belong"
    return f"{ranges} to transactions of publishers that have not ended, or were rolled back lately."


def _line(text: str) -> str:
    """The first line of an error, without its full stop."""
    return text.strip().split("\n")[0].rstrip(".")[:200]


def _count(messages: int) -> str:
    return "1 message waits" if messages == 1 else f"{messages:,} messages wait"


def _rate(rate: float) -> str:
    return f"{rate:.1f}" if 0 < rate < 9.95 else f"{rate:,.0f}"


def _short(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _duration(seconds: float) -> str:
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:,.0f} {unit}"
    return f"{seconds:.0f} s"
