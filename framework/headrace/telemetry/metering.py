"""What is measured as it happens: how long operations and handlers take, and how many messages were published."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

from opentelemetry.metrics import Meter

from headrace.model.outcomes import Reject, Retry
from headrace.telemetry import names

Call = Callable[[Any, Any], Awaitable[Any]]
Attributes = Mapping[str, Any]

MOST_SAMPLES = 100.0
"""Handlers measured a second, of one consumer, above which not every one is."""
RAREST = 256
"""At least one in so many is measured, however many there are; so that a slow time after a quick one shows soon."""


class Metering:
    """Counts and times what one app does.

    Args:
        meter: whose instruments they are.
    """

    def __init__(self, meter: Meter) -> None:
        self._sent = meter.create_counter(names.SENT, "{message}", "Messages that were sent to be published.")
        self._operation = meter.create_histogram(
            names.OPERATION_DURATION, "s", "How long publish, lease and settle calls take.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )  # fmt: skip
        self._process = meter.create_histogram(
            names.PROCESS_DURATION, "s", "How long handlers take, of a sample.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )  # fmt: skip

    def operated(self, attributes: Attributes, seconds: float, error: BaseException | None, *, sent: int = 0) -> None:
        """A publish of `sent` messages, a lease call or a settle call took so long."""
        attributes = _with_error(attributes, error)
        self._operation.record(seconds, attributes)
        if sent:
            self._sent.add(sent, attributes)

    def process(self, call: Call, attributes: Attributes) -> Call:
        """The handler's call, of which a systematic sample is measured: to record each would cost as much as all the rest."""
        record = self._process.record
        rhythm = Rhythm(perf_counter())

        async def measured(payload: Any, delivery: Any) -> Any:
            began = perf_counter()
            error: BaseException | None = None
            try:
                result = await call(payload, delivery)
                if isinstance(result, (Retry, Reject)):
                    error = result
                return result
            except BaseException as raised:
                error = raised
                raise
            finally:
                record(perf_counter() - began, _with_error(attributes, error))

        # Once per message: so it is no coroutine, and counts down in a cell.
        left = 1

        def sampled(payload: Any, delivery: Any) -> Awaitable[Any]:
            nonlocal left
            left -= 1
            if left:
                return call(payload, delivery)
            left = rhythm.next(perf_counter())
            return measured(payload, delivery)

        return sampled


class Rhythm:
    """How many calls lie between two that are measured: few enough that it is no more than `MOST_SAMPLES` a second, and at most `RAREST`.

    Args:
        now: seconds, monotonic.
    """

    def __init__(self, now: float) -> None:
        self._every = 1
        self._last = now

    def next(self, now: float) -> int:
        """One is measured now. Returns the number of the next, from here: 1 for the very next one."""
        rate = self._every / max(now - self._last, 1e-9)
        self._last = now
        self._every = min(max(round(rate / MOST_SAMPLES), 1), RAREST)
        return self._every


def _with_error(attributes: Attributes, error: BaseException | None) -> Attributes:
    return attributes if error is None else {**attributes, names.ERROR_TYPE: names.error_type(error)}
