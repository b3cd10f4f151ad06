"""Metrics that are recorded as events happen: the duration of operations and handlers, and the number of
published messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from opentelemetry.metrics import Instrument, Meter

from headrace.model.outcomes import Reject, Retry, Snooze, deciding
from headrace.model.text.error_text import error_type
from headrace.telemetry import names

Call = Callable[[Any, Any], Awaitable[Any]]
Attributes = Mapping[str, Any]

MAX_SAMPLES = 100.0
"""The maximum number of handler calls that are measured per second and consumer. Above it they are sampled."""
WINDOW = 0.25
"""Seconds of messages from which their rate is taken."""
MAX_INTERVAL = 256
"""The lowest sampling rate: at least one call in this number is measured, so that a slow period after a fast
one shows soon.
"""


class Metering:
    """Counts and times operations.

    Args:
        meter: creates the instruments.

    Attributes:
        instruments: all of them.
    """

    def __init__(self, meter: Meter) -> None:
        self._sent = meter.create_counter(names.SENT, "{message}", "Messages that were sent to be published.")
        self._operation = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "How long publish, lease and settle calls take.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self._process = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "How long handlers take, of a sample.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self.instruments: Sequence[Instrument] = (self._sent, self._operation, self._process)

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
        measured, sample = self.measured(call, attributes), MeasuredSample()

        def sampled(payload: Any, delivery: Any) -> Awaitable[Any]:
            return (measured if sample.choose(1, perf_counter()) else call)(payload, delivery)

        return sampled

    def measured(self, call: Call, attributes: Attributes) -> Call:
        """Wrap the handler's call to measure it."""
        record = self._process.record

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

        return measured


class MeasuredSample:
    """Chooses the handler calls to measure: every nth, so that at most `MAX_SAMPLES` per second are measured, and at least
    one in `MAX_INTERVAL`.
    """

    def __init__(self) -> None:
        self._left = 0  # messages before the next that is measured
        self._since = float("-inf")  # when the current window began
        self._count = 0  # messages in it
        self._before = 0.0  # their rate in the window before

    def choose(self, count: int, now: float) -> range:
        """Return which of so many messages that have arrived are measured.

        Args:
            now: seconds, monotonic.
        """
        if now - self._since >= WINDOW:
            self._before = self._count / (now - self._since)
            self._since, self._count = now, 0
        self._count += count
        rate = max(self._before, self._count / WINDOW)
        every = min(max(round(rate / MAX_SAMPLES), 1), MAX_INTERVAL)
        chosen = range(min(self._left, every - 1), count, every)
        self._left = chosen.start + len(chosen) * every - count
        return chosen


def _with_error(attributes: Attributes, error: BaseException | None) -> Attributes:
    if error is None or isinstance(error := deciding(error), Snooze):
        return attributes
    return {**attributes, names.ERROR_TYPE: error_type(error)}
