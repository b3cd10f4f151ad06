"""Sampling by ratio: what the sampler drops costs little, and nothing else about it differs."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, ProxyTracer, SpanContext

from headrace import App, Message
from headrace.model.specs import ConsumerSpec
from headrace.telemetry import sampling
from headrace.telemetry.sampling import DroppedSpan, ratio_sampling
from headrace.telemetry.tracing import Tracing
from tests.runtime.running import running
from tests.telemetry.recorded import Recorded, is_child, trace_of

REMOTE = {
    "sampled": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "not sampled": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
}


class Delivery:
    key, seq, attempt = "a", 1, 1

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        self.raw_headers = None if headers is None else json.dumps(headers)


class Current(NamedTuple):
    span: Any
    recorded: bool
    context: SpanContext


async def handle(sampler: Sampler, *headers: dict[str, str] | None) -> list[Current]:
    """The spans that are current in a handler of messages with these headers: whether each is recorded, with its
    context."""
    recorded = Recorded(sampler=sampler)
    seen: list[Current] = []

    async def call(payload: Any, delivery: Any) -> None:
        span = trace.get_current_span()
        seen.append(Current(span, span.is_recording(), span.get_span_context()))

    tracing, spec = Tracing(recorded.tracers.get_tracer("headrace")), ConsumerSpec(stream="orders", name="ship")
    process, sample = tracing.process(spec, call, {}, batch=False), tracing.sample(spec, call, {})
    messages = [Delivery(each) for each in headers]
    at_work: list[Delivery | None] = [None]

    async def actor() -> None:
        chosen: Any = {}
        if sample is not None:  # otherwise all are called in the same way
            chosen = sample.choose([message.raw_headers for message in messages])
            sample.enter_actor(lambda: at_work[0])
        for place, message in enumerate(messages):
            at_work[0] = message
            await chosen.get(place, process if sample is None else call)(1, message)
            if sample is not None:  # what is logged of the message outside of its span
                assert trace.get_current_span().get_span_context() == seen[-1].context
        at_work[0] = None
        assert trace.get_current_span().get_span_context().is_valid is False

    await asyncio.create_task(actor())
    assert trace.get_current_span().get_span_context().is_valid is False
    return seen


class Unknown(ParentBased):
    """Like `ParentBased`, but the decisions are made by the SDK alone."""

    def should_sample(self, *args: Any, **options: Any) -> Any:
        return super().should_sample(*args, **options)


@pytest.mark.asyncio
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("parent", [None, *REMOTE])
async def test_traces_are_sampled_as_by_the_sdk_alone(rate: float, parent: str | None) -> None:
    headers = [None if parent is None else {"traceparent": REMOTE[parent], "tracestate": "shop=1"}] * 200
    ours = await handle(ParentBased(TraceIdRatioBased(rate)), *headers)
    theirs = await handle(Unknown(TraceIdRatioBased(rate)), *headers)
    for _, recorded, context in (*ours, *theirs):
        if parent is None:
            assert recorded is ((context.trace_id & (1 << 64) - 1) < TraceIdRatioBased(rate).bound)
        else:
            assert recorded is (parent == "sampled")
            assert context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
        assert context.trace_flags.sampled is recorded
        assert context.trace_state == theirs[0].context.trace_state
        assert context.is_valid
        assert context.is_remote is False
    if parent is None:  # older versions of the SDK don't take all flags from a parent
        assert {one.context.trace_flags | 1 for one in ours} == {one.context.trace_flags | 1 for one in theirs}
        assert len({one.context.trace_id for one in ours}) == 200
    assert len({one.context.span_id for one in ours}) == 200
    assert [isinstance(one.span, DroppedSpan) for one in ours] == [not one.recorded for one in ours]
    assert len({id(one.span) for one in ours if not one.recorded}) <= 1
    assert not any(isinstance(one.span, DroppedSpan) for one in theirs)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_as_many_traces_are_sampled_as_if_each_were_decided_by_itself(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "random", random.Random(7))
    tracer = TracerProvider(ParentBasedTraceIdRatio(rate), shutdown_on_exit=False).get_tracer("headrace")
    decisions = ratio_sampling(tracer)
    assert decisions is not None
    sampled = []
    for size in [1, 7, 992] * 40:  # batches, which share the decisions
        chosen = decisions.choose([None] * size)
        sampled += [place in chosen for place in range(size)]
    assert len(sampled) == 40_000
    assert sum(sampled) / 40_000 == pytest.approx(rate, rel=0.06)
    pairs = sum(one and other for one, other in pairwise(sampled))  # neither attract each other nor repel
    assert pairs / 40_000 == pytest.approx(rate * rate, rel=0.5)


def test_a_generator_whose_ids_may_have_a_meaning_is_asked_as_usual() -> None:
    class Dated(RandomIdGenerator):
        pass

    provider = TracerProvider(ParentBasedTraceIdRatio(0.5), id_generator=Dated(), shutdown_on_exit=False)
    assert ratio_sampling(provider.get_tracer("headrace")) is None


@pytest.mark.asyncio
async def test_a_dropped_span_keeps_its_ids_and_has_those_of_its_parent() -> None:
    ((span, _, context),) = await handle(ParentBasedTraceIdRatio(1), {"traceparent": REMOTE["not sampled"]})
    assert isinstance(span, DroppedSpan)
    assert (context.trace_id, context.trace_flags.sampled) == (0x0AF7651916CD43DD8448EB211C80319C, False)
    assert context.span_id != 0xB7AD6B7169203331


def test_a_dropped_span_has_the_ids_of_the_message_in_work() -> None:
    tracer = TracerProvider(ParentBasedTraceIdRatio(0), shutdown_on_exit=False).get_tracer("headrace")
    decisions = ratio_sampling(tracer)
    assert decisions is not None
    first, second = Delivery(), Delivery({"traceparent": REMOTE["not sampled"]})
    at_work: list[Delivery | None] = [first]
    span = DroppedSpan(decisions, lambda: at_work[0])
    context = span.get_span_context()
    assert span.get_span_context() is context
    assert f"{context.trace_id:x}" in repr(span)
    at_work[0] = second
    assert span.get_span_context().trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    at_work[0] = None
    assert not span.get_span_context().is_valid


@pytest.mark.asyncio
async def test_a_dropped_trace_carries_its_baggage() -> None:
    recorded, seen = Recorded(sampler=ParentBasedTraceIdRatio(0)), []

    async def call(payload: Any, message: Any) -> None:
        seen.append((baggage.get_baggage("tenant"), trace.get_current_span().get_span_context().trace_id))

    tracing = Tracing(recorded.tracers.get_tracer("headrace"))
    sample = tracing.sample(ConsumerSpec(stream="orders", name="ship"), call, {})
    assert sample is not None
    message = Delivery({"traceparent": REMOTE["not sampled"], "baggage": "tenant=7"})
    for process in sample.choose([None, message.raw_headers]).values():
        await process(1, message)
    assert seen == [("7", 0x0AF7651916CD43DD8448EB211C80319C)]
    assert recorded.spans("process orders") == []


def test_other_samplers_and_tracers_are_asked_as_usual() -> None:
    for sampler in (
        ALWAYS_ON, ALWAYS_OFF, TraceIdRatioBased(0.5), ParentBased(ALWAYS_ON), Unknown(TraceIdRatioBased(0.5)),
        ParentBased(TraceIdRatioBased(0.5), remote_parent_not_sampled=ALWAYS_ON),
    ):  # fmt: skip
        assert ratio_sampling(TracerProvider(sampler, shutdown_on_exit=False).get_tracer("headrace")) is None
    assert ratio_sampling(ProxyTracer("headrace")) is None
    assert ratio_sampling(trace.NoOpTracer()) is None


def test_two_apps_with_one_provider_share_its_ids() -> None:
    tracer: Any = TracerProvider(ParentBasedTraceIdRatio(0.5), shutdown_on_exit=False).get_tracer("headrace")
    assert ratio_sampling(tracer) is not None
    ids = tracer.id_generator
    assert ratio_sampling(tracer) is not None
    assert tracer.id_generator is ids


@pytest.mark.asyncio
async def test_what_a_handler_begins_in_a_dropped_trace_is_dropped_too(dsn: str) -> None:
    recorded = Recorded(sampler=ParentBased(TraceIdRatioBased(0.5)))
    app = App(dsn, streams=["orders", "invoices"], telemetry=recorded.telemetry)
    shop = recorded.tracers.get_tracer("shop")
    sampled: dict[int, bool] = {}

    @app.consumer("orders")
    async def ship(number: int, message: Message) -> None:
        sampled[number] = trace.get_current_span().is_recording()
        with shop.start_as_current_span(f"inside {number}") as span:
            assert span.is_recording() is sampled[number]
            assert baggage.get_baggage("tenant") is None
        await message.publish("invoices", message.key, number)

    @app.consumer("invoices")
    async def send(number: int) -> None:
        assert trace.get_current_span().is_recording() is sampled[number]
        assert isinstance(trace.get_current_span(), NonRecordingSpan) is not sampled[number]

    plain = App(dsn, streams=["orders"], telemetry=False)
    async with plain:
        await plain.publish_many("orders", [("a", number) for number in range(60)])
    async with running(app):
        await app.idle()
    seen = [number for number in range(60) if sampled[number]]
    assert 5 < len(seen) < 55
    assert len(recorded.spans("process orders")) == len(recorded.spans("process invoices")) == len(seen)
    processed = {trace_of(span): span for span in recorded.spans("process orders")}
    for number in seen:
        inside = recorded.span(f"inside {number}")
        assert is_child(inside, processed[trace_of(inside)])
    assert not any(recorded.spans(f"inside {number}") for number in range(60) if not sampled[number])
