"""The parts that executors use, whether their handler takes one message at a time or batches."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.flow.lanes import Lanes
from headrace.model.clock import Clock
from headrace.runtime.calls import Call
from headrace.runtime.execution.durations import Durations
from headrace.runtime.execution.failure_handler import FailureHandler
from headrace.runtime.execution.suspects import Suspects
from headrace.runtime.handlers.handler import Decode
from headrace.runtime.messages.message import Message
from headrace.runtime.settling.acknowledger import Acknowledger


class Execution(msgspec.Struct, frozen=True):
    """How the messages of one consumer are executed.

    Attributes:
        decode: decodes a payload into the type that the handler takes.
        opens: brings a stored payload to the form that `decode` takes. None if it has that form.
        call: calls the handler with all its layers, see `headrace.runtime.pipeline.layers`.
        lanes: the messages that wait.
        acknowledger: receives the outcomes.
        failure_handler: turns errors into outcomes.
        suspects: controls the start of messages that a worker held when it died.
        clock: the clock of the leases.
        durations: what calls of the handler take.
    """

    decode: Decode
    opens: Callable[[Message], None] | None
    call: Call
    lanes: Lanes[Message]
    acknowledger: Acknowledger
    failure_handler: FailureHandler
    suspects: Suspects
    clock: Clock
    durations: Durations
