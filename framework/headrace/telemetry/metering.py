"""Metrics that are recorded as events happen: the duration of operations and handlers, and the number of
published messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

from opentelemetry.metrics import Meter

from headrace.model.outcomes import Reject, Retry, Snooze
from headrace.model.text.error_text import error_type
from headrace.telemetry import names

Call = Callable[[Any, Any], Awaitable[Any]]
Attributes = Mapping[str, Any]

MAX_SAMPLES = 100.0
"""The maximum number of handler calls that are measured per second and consumer. Above it they are sampled."""
MAX_INTERVAL = 256
"""The lowest sampling rate: at least one call in this number is measured, so that a slow period after a fast
one shows soon.
"""


class Metering:
    """Counts and times the operations of one app.

    Args:
        meter: creates the instruments.
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
        """Record the duration of a publish of `sent` messages, a lease call or a settle call."""
        attributes = _with_error(attributes, error)
        self._operation.record(seconds, attributes)
        if sent:
            self._sent.add(sent, attributes)

    def process(self, call: Call, attributes: Attributes) -> Call:
        """Wrap the handler's call to measure a systematic sample. Recording every call would cost as much as
        all the rest.
        """
        record = self._process.record
        interval = SamplingInterval(perf_counter())

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

        # This runs once per message. So it is not a coroutine, and it counts down in a variable of the closure.
        left = 1

        def sampled(payload: Any, delivery: Any) -> Awaitable[Any]:
            nonlocal left
            left -= 1
            if left:
                return call(payload, delivery)
            left = interval.next(perf_counter())
            return measured(payload, delivery)

        return sampled


class SamplingInterval:
    """The sampling interval: the number of calls from one measured call to the next.

    The interval is chosen so that at most `MAX_SAMPLES` calls per second are measured. It is never longer
    than `MAX_INTERVAL`.

    Args:
        now: seconds, monotonic.
    """

    def __init__(self, now: float) -> None:
        self._every = 1
        self._last = now

    def next(self, now: float) -> int:
        """Note that a call is measured now. Returns how many calls later the next one is measured, 1 for the
        very next call.
        """
        rate = self._every / max(now - self._last, 1e-9)
        self._last = now
        self._every = min(max(round(rate / MAX_SAMPLES), 1), MAX_INTERVAL)
        return self._every


def _with_error(attributes: Attributes, error: BaseException | None) -> Attributes:
    if error is None or isinstance(error, Snooze):
        return attributes
    return {**attributes, names.ERROR_TYPE: error_type(error)}
