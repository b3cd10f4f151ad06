"""Builds the call of your function with its layers, from the outside in.

    telemetry ─▶ middleware ─▶ transaction ─▶ dependencies ─▶ runner ─▶ your function

A consumer has only the layers that it uses. Without any, the actor calls the function directly. Where telemetry observes
a sample, it is the outermost layer for the chosen messages only.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.model.handling import Handling
from headrace.model.specs import ConsumerSpec
from headrace.runtime.calls import Call
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.handlers.middleware import around
from headrace.runtime.handlers.runners import Runner, leased
from headrace.runtime.handlers.transactional import Transactional
from headrace.runtime.instruments import Sample
from headrace.runtime.pipeline.shared import Shared


class Layers(NamedTuple):
    """The call of a handler with its layers.

    Attributes:
        call: the usual one.
        sample: the messages that telemetry calls the handler of in another way, if it is enough to observe some.
    """

    call: Call
    sample: Sample | None = None


def with_layers(
    spec: ConsumerSpec,
    handler: Handler,
    runner: Runner,
    handling: Handling,
    shared: Shared,
    transactional: Transactional,
) -> Layers:
    """Return the handler's call with all layers that this consumer uses."""
    middleware = [*shared.middleware, *handling.middleware]
    waits = handling.transactional or handler.dependencies or middleware
    call: Call = leased(runner.call) if waits and handling.runner == "async" else runner.call
    if shared.witness is not None:
        call = shared.witness.inside(spec, call)
    if handler.dependencies:
        call = shared.dependencies.resolve(call, handler.dependencies)
    if handling.transactional or handling.publishes is not None:
        call = transactional.around(call)
    call = around(call, middleware, batch=handling.batch is not None)
    if shared.instruments is not None:
        sample = None if shared.witness or handling.batch is not None else shared.instruments.sample(spec, call)
        if sample is not None:
            return Layers(call, sample)
        call = shared.instruments.process(spec, call, batch=handling.batch is not None)
    if shared.witness is not None:
        call = shared.witness.outside(spec, call)
    return Layers(call)
