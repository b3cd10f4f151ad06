"""Spans: a trace runs from the publisher through the handler to the messages that it publishes."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from headrace import App, Batch, Message, Reject, Retry, UnknownStream
from headrace.telemetry.carrier import MAX_LINKS
from tests.runtime.running import numbered, running, seek, work_off
from tests.telemetry.recorded import Recorded, id_of, is_child, linked, trace_of


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def app(dsn: str, recorded: Recorded) -> App:
    return App(dsn, streams=["orders", "invoices"], telemetry=recorded.telemetry)


async def publish_and_work_off(app: App, *messages: tuple[str, Any]) -> None:
    async with running(app):
        for key, data in messages:
            await app.publish("orders", key, data)
        await app.idle()


@pytest.mark.asyncio
async def test_a_trace_runs_from_the_publisher_through_a_handler_into_what_that_publishes(
    app: App, recorded: Recorded
) -> None:
    @app.consumer("orders")
    async def ship(number: int, message: Message) -> None:
        await message.publish("invoices", message.key, number)

    @app.consumer("invoices")
    async def send(number: int) -> None: ...

    async with running(app):
        with recorded.tracers.get_tracer("shop").start_as_current_span("checkout"):
            await app.publish("orders", "a", 1)
        await app.idle()

    checkout, published, shipped, invoiced, sent = (
        recorded.span(name)
        for name in ("checkout", "publish orders", "process orders", "publish invoices", "process invoices")
    )
    assert is_child(published, checkout)
    assert is_child(shipped, published)
    assert is_child(invoiced, shipped)
    assert is_child(sent, invoiced)
    assert linked(shipped) == [id_of(published)]
    assert linked(recorded.span("lease orders")) == [id_of(published)]
    assert linked(recorded.span("lease invoices")) == [id_of(invoiced)]


@pytest.mark.asyncio
async def test_spans_are_named_and_described_after_the_conventions(app: App, recorded: Recorded) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    await publish_and_work_off(app, ("de.7", 1))

    common = {"messaging.system": "headrace", "messaging.destination.name": "orders"}
    consumer = {**common, "messaging.consumer.group.name": "ship"}
    exporter = {
        "publish orders": (
            SpanKind.PRODUCER,
            common
            | {
                "messaging.operation.name": "publish",
                "messaging.operation.type": "send",
                "messaging.message.id": "orders:1",
            },
        ),
        "lease orders": (
            SpanKind.CLIENT,
            consumer
            | {
                "messaging.operation.name": "lease",
                "messaging.operation.type": "receive",
                "messaging.batch.message_count": 1,
            },
        ),
        "process orders": (
            SpanKind.CONSUMER,
            consumer
            | {
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.message.id": "orders:1",
                "messaging.headrace.message.key": "de.7",
                "messaging.headrace.message.attempt": 1,
            },
        ),
        "settle orders": (
            SpanKind.CLIENT,
            consumer
            | {
                "messaging.operation.name": "settle",
                "messaging.operation.type": "settle",
                "messaging.batch.message_count": 1,
                "messaging.headrace.settle.acked": 1,
                "messaging.headrace.settle.failed": 0,
                "messaging.headrace.settle.released": 0,
            },
        ),
    }
    assert {span.name: (span.kind, dict(span.attributes or {})) for span in recorded.spans()} == exporter
    assert all(span.status.status_code is StatusCode.UNSET for span in recorded.spans())


@pytest.mark.asyncio
async def test_a_message_carries_its_trace_beside_its_own_headers(app: App, recorded: Recorded) -> None:
    async with app:
        await app.publish("orders", "a", 1, headers={"shop": "de"})
        await app.publish("orders", "b", 2)
        rows = await app.database.fetch("select headers from headrace_streams.orders order by seq")
    first, second = (json.loads(row[0]) for row in rows)
    assert first["shop"] == "de"
    assert set(first) - {"shop"} == set(second) == {"traceparent"}
    assert [int(headers["traceparent"].split("-")[2], 16) for headers in (first, second)] == [
        id_of(span) for span in recorded.spans("publish orders")
    ]


@pytest.mark.asyncio
async def test_many_messages_published_at_once_carry_the_trace_of_that_call(app: App, recorded: Recorded) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    await work_off(app, *numbered("abc"))
    published = recorded.span("publish orders")
    assert published.attributes is not None
    assert published.attributes["messaging.batch.message_count"] == 3
    assert [is_child(span, published) for span in recorded.spans("process orders")] == [True] * 3
    assert all(linked(span) == [id_of(published)] for span in recorded.spans("lease orders"))


@pytest.mark.asyncio
async def test_a_trace_that_the_user_put_into_the_headers_is_left_as_it_is(app: App, recorded: Recorded) -> None:
    theirs = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "shop": "de"}

    @app.consumer("orders")
    async def ship(number: int, message: Message) -> None:
        assert message.headers == theirs

    async with running(app):
        await app.publish("orders", "a", 1, headers=theirs)
        await app.idle()
    assert linked(recorded.span("publish orders")) == [0xB7AD6B7169203331]
    shipped = recorded.span("process orders")
    assert shipped.parent is not None
    assert (trace_of(shipped), shipped.parent.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "headers", ['{"traceparent": 7}', '{"traceparent": "nonsense"}', '{"x": {"traceparent": "y"}}']
)
async def test_headers_that_carry_no_trace_begin_one(app: App, recorded: Recorded, headers: str) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    async with running(app):
        await app.database.fetchval("select headrace.publish('orders', 'a', '1', $1::json)", headers)
        await app.idle()
    shipped = recorded.span("process orders")
    assert (shipped.parent, shipped.status.status_code) == (None, StatusCode.UNSET)


@pytest.mark.asyncio
async def test_spans_of_handlers_do_not_belong_to_the_trace_that_started_the_app(app: App, recorded: Recorded) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    async with app:
        await app.database.fetchval("select headrace.publish('orders', 'a', '1', null)")
    with recorded.tracers.get_tracer("shop").start_as_current_span("main"):
        async with running(app):
            await app.idle()
    main = recorded.span("main")
    assert all(trace_of(span) != trace_of(main) for span in recorded.spans() if span is not main)


# --- batches


@pytest.mark.asyncio
async def test_a_batch_is_one_span_that_links_to_where_its_messages_come_from(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", batch=10, batch_timeout=30, concurrency=1)
    async def ship(numbers: list[int], batch: Batch) -> None:
        await batch.messages[0].publish("invoices", "a", sum(numbers))

    async with app:
        await app.publish_many("orders", [(str(number), number, {"number": number}) for number in range(7)])
        for number in range(7, 10):
            await app.publish("orders", str(number), number)
    async with running(app):
        await app.idle()

    shipped = recorded.span("process orders")
    assert shipped.attributes is not None
    assert shipped.attributes["messaging.batch.message_count"] == 10
    assert "messaging.message.id" not in shipped.attributes
    assert shipped.parent is None
    assert linked(shipped) == [id_of(span) for span in recorded.spans("publish orders")]
    named = [(link.attributes or {})["messaging.message.id"] for link in shipped.links]
    assert named == ["orders:1", "orders:8", "orders:9", "orders:10"]
    assert is_child(recorded.span("publish invoices"), shipped)


@pytest.mark.asyncio
async def test_a_batch_links_to_no_more_places_than_are_kept(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", batch=200, batch_timeout=30, concurrency=1)
    async def ship(numbers: list[int]) -> None: ...

    parents = [f"00-{trace_id:032x}-{1:016x}-01" for trace_id in range(1, 201)]
    async with app:
        await app.publish_many("orders", [("a", 1, {"traceparent": parent}) for parent in parents])
    async with running(app):
        await app.idle()
    assert len(recorded.span("process orders").links) == MAX_LINKS


# --- errors


@pytest.mark.asyncio
async def test_a_handler_that_raises_is_recorded_with_its_error(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", backoff=0, max_deliver=2)
    async def ship(number: int) -> None:
        raise ZeroDivisionError("no")

    await publish_and_work_off(app, ("a", 1))
    first, second = recorded.spans("process orders")
    for attempt, span in enumerate((first, second), 1):
        assert span.attributes is not None
        assert span.attributes["messaging.headrace.message.attempt"] == attempt
        assert span.attributes["error.type"] == "ZeroDivisionError"
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no")
        assert [event.name for event in span.events] == ["exception"]
    failed = [(span.attributes or {})["messaging.headrace.settle.failed"] for span in recorded.spans("settle orders")]
    assert sorted(failed)[-2:] == [1, 1]
    assert sum(failed) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_an_explicit_outcome_is_recorded_without_a_traceback(app: App, recorded: Recorded, how: str) -> None:
    @app.consumer("orders", backoff=0)
    async def ship(number: int, message: Message) -> Any:
        outcome = Retry("later", after=0) if message.attempt == 1 else Reject("never")
        if how == "raised":
            raise outcome
        return outcome

    await publish_and_work_off(app, ("a", 1))
    errors = [
        ((span.attributes or {})["error.type"], span.status.description) for span in recorded.spans("process orders")
    ]
    assert errors == [("headrace.Retry", "later"), ("headrace.Reject", "never")]
    assert not any(span.events for span in recorded.spans("process orders"))


@pytest.mark.asyncio
async def test_a_handler_that_was_stopped_is_recorded_as_stopped(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", timeout=0.05, max_deliver=1)
    async def ship(number: int) -> None:
        await anyio.sleep_forever()

    await publish_and_work_off(app, ("a", 1))
    assert "CancelledError" in str((recorded.span("process orders").attributes or {})["error.type"])


@pytest.mark.asyncio
async def test_an_exception_that_cannot_say_what_it_is_does_no_harm(app: App, recorded: Recorded) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int) -> None:
        raise Mute

    await publish_and_work_off(app, ("a", 1))
    assert "Mute" in str((recorded.span("process orders").attributes or {})["error.type"])


@pytest.mark.asyncio
async def test_a_publish_that_failed_is_recorded_with_its_error(app: App, recorded: Recorded) -> None:
    async with app:
        with pytest.raises(UnknownStream):
            await app.publish("nowhere", "a", 1)
    span = recorded.span("publish nowhere")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "headrace.UnknownStream"


# --- where handlers run


@pytest.mark.asyncio
async def test_a_handler_has_its_span_and_the_messages_baggage_as_current(app: App, recorded: Recorded) -> None:
    seen: list[tuple[int, object]] = []

    @app.consumer("orders")
    async def on_the_loop(number: int) -> None:
        seen.append((trace.get_current_span().get_span_context().span_id, baggage.get_baggage("shop")))

    @app.consumer("orders")
    def in_a_thread(number: int) -> None:
        seen.append((trace.get_current_span().get_span_context().span_id, baggage.get_baggage("shop")))

    async with running(app):
        token = attach(baggage.set_baggage("shop", "de"))
        await app.publish("orders", "a", 1)
        detach(token)
        await app.idle()
    assert {span_id for span_id, _ in seen} == {id_of(span) for span in recorded.spans("process orders")}
    assert {shop for _, shop in seen} == {"de"}


@pytest.mark.asyncio
async def test_messages_published_by_a_transactional_handler_belong_to_its_span(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", transactional=True)
    async def ship(number: int, message: Message) -> None:
        await message.publish("invoices", message.key, number)

    @app.consumer("orders", publishes="invoices")
    async def bill(number: int) -> tuple[str, int]:
        return "a", number

    await publish_and_work_off(app, ("a", 1))
    shipped, billed = recorded.spans("process orders")
    published = recorded.spans("publish invoices")
    assert len(published) == 2
    assert {span.parent.span_id for span in published if span.parent} == {id_of(shipped), id_of(billed)}


@pytest.mark.asyncio
async def test_a_redelivered_message_is_another_span_of_the_same_trace(app: App, recorded: Recorded) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        await seek(app, "ship")
        await app.idle()
    published = recorded.span("publish orders")
    assert [is_child(span, published) for span in recorded.spans("process orders")] == [True, True]


@pytest.mark.asyncio
async def test_a_trace_that_is_not_sampled_stays_so_on_its_whole_way(dsn: str) -> None:
    recorded = Recorded(sampler=ParentBased(ALWAYS_OFF))
    app = App(dsn, streams=["orders"], telemetry=recorded.telemetry)
    sampled: list[bool] = []

    @app.consumer("orders")
    async def ship(number: int, message: Message) -> None:
        sampled.append(bool(int(message.headers["traceparent"][-2:], 16) & 1))

    await publish_and_work_off(app, ("a", 1))
    assert (sampled, recorded.spans()) == ([False], [])
