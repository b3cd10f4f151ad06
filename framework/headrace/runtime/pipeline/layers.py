"""Builds the call of your function with its layers, from the outside in.

    telemetry ─▶ middleware ─▶ transaction ─▶ dependencies ─▶ runner ─▶ your function

A consumer has only the layers that it uses. Without any, the actor calls the function directly.
"""

from __future__ import annotations

from headrace.model.handling import Handling
from headrace.model.specs import ConsumerSpec
from headrace.runtime.calls import Call
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.handlers.middleware import around
from headrace.runtime.handlers.runners import Runner
from headrace.runtime.handlers.transactional import Transactional
from headrace.runtime.pipeline.shared import Shared
from headrace.runtime.settling.acknowledger import Acknowledger


def with_layers(
    consumer: int, spec: ConsumerSpec, handler: Handler, runner: Runner, handling: Handling, acknowledger: Acknowledger, shared: Shared
) -> Call:  # fmt: skip
    """Return the handler's call with all layers that this consumer uses."""
    call: Call = runner.call
    if shared.witness is not None:
        call = shared.witness.inside(spec, call)
    if handler.dependencies:
        call = shared.dependencies.resolve(call, handler.dependencies)
    if handling.transactional or handling.publishes is not None:
        call = Transactional(
            consumer, spec, handling, acknowledger.ack, shared.database, shared.publisher, shared.time
        ).around(call)
    call = around(call, [*shared.middleware, *handling.middleware], batch=handling.batch is not None)
    if shared.instruments is not None:
        call = shared.instruments.process(spec, call, batch=handling.batch is not None)
    if shared.witness is not None:
        call = shared.witness.outside(spec, call)
    return call
