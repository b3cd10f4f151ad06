"""The circuit breaker of one consumer (`PipelineBreaker`), applied to its pipeline.

The acknowledger reports failures to it. When they open the breaker, waiting messages are released and no more are
leased. Handlers that run are not stopped, and failures of theirs during that time
count no attempts. After the pause one message is leased. Acks cost nothing, because the in-flight
tracker's count shows whether there was an ack between two failures.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.flow.circuit_breaker import BEHIND, CircuitBreaker
from headrace.flow.in_flight import InFlightTracker
from headrace.model.clock import Clock
from headrace.model.handling import Breaker
from headrace.model.log import Log
from headrace.model.outcomes import Failure
from headrace.runtime.messages.message import Message
from headrace.runtime.slot import current_slot

log = Log("headrace")


class PipelineBreaker:
    """Opens and closes the circuit breaker of one consumer.

    Attributes:
        probe: the message that is tried in the half-open state. Otherwise None.
    """

    def __init__(self, name: str, settings: Breaker, in_flight: InFlightTracker[Message], clock: Clock) -> None:
        self._name = name
        self._in_flight = in_flight
        self._clock = clock
        self._circuit = CircuitBreaker(settings)
        self._acked = 0  # the tracker's count of acks at the failure before
        self._call: Any = None  # the delivery that failed last
        self.probe: Message | None = None
        self._went_back = False  # whether the probe went back or became a dead letter

    @property
    def closed(self) -> bool:
        """Whether the breaker is closed."""
        return self._circuit.state == "closed"

    @property
    def left(self) -> float:
        """Seconds until the next probe."""
        return self._circuit.left(self._clock())

    def judge(self, message: Message, failure: Failure) -> Failure:
        """Count a failure of a message. Returns the failure to record, which may be a release."""
        if failure.kind != "retry" and not (failure.kind == "release" and failure.error is not None):
            return failure
        if not self.closed:
            if message is self.probe:
                self._failed(failure)
                return msgspec.structs.replace(failure, kind="release", delay=self._circuit.pause * BEHIND)
            return msgspec.structs.replace(failure, kind="release")
        if self._in_flight.acked != self._acked:
            self._acked = self._in_flight.acked
            self._circuit.succeeded()
        if self._is_another_call():
            self._failed(failure)
        return failure

    def back(self, message: Message) -> None:
        """Note that a message goes back or becomes a dead letter."""
        self._went_back |= message is self.probe

    def _is_another_call(self) -> bool:
        """Whether this failure is of another call than the last one, and not of one more message of
        the same batch."""
        slot = current_slot.get()
        call = None if slot is None else slot.delivery
        before, self._call = self._call, call
        return call is None or call is not before

    def _failed(self, failure: Failure) -> None:
        if self._circuit.failed(self._clock(), failure.error or "no reason given"):
            pause, failures = self._circuit.pause, self._circuit.failures
            log.warning(
                "circuit breaker opened", consumer=self._name, pause=pause, failures=failures, error=failure.error
            )

    def begin_probe(self) -> None:
        """Become half-open, because the pause is over. The next message is tried."""
        self._circuit.probe()

    def admits(self, messages: list[Message]) -> bool:
        """Whether these leased messages may be handled. True if the breaker is closed, or for the
        probe, which is the first of them."""
        if self._circuit.state == "half-open" and self.probe is None:
            self.probe = messages[0]
            return True
        return self.closed

    def end_probe(self) -> None:
        """End the probe after it has an outcome. Only an ack closes the breaker. After an outcome
        without information on the downstream, such as a release, another probe follows."""
        acked = self.probe is not None and not self.probe.lease.left and not self._went_back
        self.probe, self._went_back, self._call = None, False, None
        if acked and self._circuit.succeeded():
            self._acked = self._in_flight.acked
            log.info("circuit breaker closed", consumer=self._name)

    def statistics(self) -> dict[str, Any]:
        """Return the state, the seconds until the next probe, the failures in a row, and the failure
        that opened the breaker."""
        return self._circuit.statistics(self._clock())
