"""The guard: a circuit breaker at work in one consumer.

It sees failures at the desk. When they open the breaker, what waits is given back and nothing more is leased; the handlers that
run end as they end, and of what fails meanwhile no attempt is counted. After the pause one message is leased. Acks cost nothing:
whether there was one between two failures is seen by custody's count.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from headrace.flow.breaker import BEHIND, Circuit
from headrace.flow.custody import Custody
from headrace.model.handling import Breaker
from headrace.model.outcomes import Failure
from headrace.runtime.bench import at_work
from headrace.runtime.message import Message
from headrace.runtime.wiring import Clock

logger = logging.getLogger("headrace")


class Guard:
    """Opens and closes the circuit of one consumer.

    Attributes:
        probe: the message that is tried, while there is one.
    """

    def __init__(self, name: str, settings: Breaker, custody: Custody[Message], clock: Clock) -> None:
        self._name = name
        self._custody = custody
        self._clock = clock
        self._circuit = Circuit(settings)
        self._acked = 0  # by the failure before
        self._call: Any = None  # the delivery that failed last
        self.probe: Message | None = None
        self._went_back = False  # the probe

    @property
    def closed(self) -> bool:
        """Whether all is well."""
        return self._circuit.state == "closed"

    @property
    def left(self) -> float:
        """Seconds until the next probe."""
        return self._circuit.left(self._clock())

    def judge(self, message: Message, failure: Failure) -> Failure:
        """A message has failed. Returns the failure as it counts."""
        if failure.kind != "retry":
            return failure
        if not self.closed:
            if message is self.probe:
                self._failed(failure)
                return msgspec.structs.replace(failure, kind="release", delay=self._circuit.pause * BEHIND)
            return msgspec.structs.replace(failure, kind="release")
        if self._custody.acked != self._acked:
            self._acked = self._custody.acked
            self._circuit.succeeded()
        if self._is_another_call():
            self._failed(failure)
        return failure

    def back(self, message: Message) -> None:
        """A message goes back, or to the dead letters."""
        self._went_back |= message is self.probe

    def _is_another_call(self) -> bool:
        """Whether this is not one more message of a batch that has failed already."""
        bench = at_work.get()
        call = None if bench is None else bench.delivery
        before, self._call = self._call, call
        return call is None or call is not before

    def _failed(self, failure: Failure) -> None:
        if self._circuit.failed(self._clock(), failure.error or "no reason given"):
            logger.warning(
                "%s: paused for %.3g s after %d failures in a row, the last: %s",
                self._name, self._circuit.pause, self._circuit.failures, failure.error,
            )  # fmt: skip

    def begin_probe(self) -> None:
        """The pause is over: the next message is tried."""
        self._circuit.probe()

    def admits(self, messages: list[Message]) -> bool:
        """Whether these, just leased, may be handled: when all is well, or the first of them as the probe."""
        if self._circuit.state == "half-open" and self.probe is None:
            self.probe = messages[0]
            return True
        return self.closed

    def end_probe(self) -> None:
        """The probe has its outcome. Only an ack closes the circuit; what says nothing of the downstream is followed by another probe."""
        acked = self.probe is not None and not self.probe.lease.left and not self._went_back
        self.probe, self._went_back, self._call = None, False, None
        if acked and self._circuit.succeeded():
            self._acked = self._custody.acked
            logger.info("%s goes on: a message was handled", self._name)

    def statistics(self) -> dict[str, Any]:
        """The state, seconds until the next probe, failures in a row, and the failure that opened it."""
        return self._circuit.statistics(self._clock())
