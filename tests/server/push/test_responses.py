"""The outcome of a message for each answer of its endpoint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from headrace import store
from headrace.model.specs import Backoff
from headrace.server.push import responses
from tests.runtime.running import Gate, dead_letters, eventually
from tests.server.push.endpoints import Endpoint, PushApp, Request, always, listening
from tests.support.logs import logged

HOUR = 3600.0
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_2xx_is_an_ack(push_app: PushApp, endpoint: Endpoint, status: int) -> None:
    endpoint.answer = always(status)
    await push_app.declare(endpoint.url)
    await push_app.app.publish("orders", "k", 1)
    info = await push_app.done()
    assert (len(endpoint.requests), info.dead_letters) == (1, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [400, 401, 404, 410, 500, 502])
async def test_anything_else_is_a_nack_with_the_consumers_backoff(
    push_app: PushApp, endpoint: Endpoint, status: int
) -> None:
    endpoint.answer = always(status, retry_after="7")  # only 429 and 503 may set this
    await push_app.declare(endpoint.url, backoff=Backoff.of(HOUR))
    await push_app.app.publish("orders", "k", 1)
    row = await push_app.parked(attempts=1)
    assert HOUR - 60 < row["due_in"] <= HOUR


@pytest.mark.asyncio
async def test_the_dead_letter_contains_the_answer(push_app: PushApp, endpoint: Endpoint) -> None:
    endpoint.answer = always(500, "no such\n shop \x1b[31m" + "x" * 10_000)
    await push_app.declare(endpoint.url, max_deliver=2, backoff=Backoff.of(0))
    await push_app.app.publish("orders", "k", 1)
    await push_app.done()
    (dead_letter,) = await dead_letters(push_app.app, "ship")
    assert dead_letter.error is not None
    assert dead_letter.error.startswith(
        "The endpoint responded with 500 Internal Server Error: no such shop \ufffd[31mxxx"
    )
    assert len(dead_letter.error) < 600
    assert (dead_letter.attempts, dead_letter.reason, dead_letter.traceback) == (2, "exhausted", None)


@pytest.mark.asyncio
async def test_a_batch_that_is_refused_comes_again_as_a_whole(push_app: PushApp, endpoint: Endpoint) -> None:
    endpoint.answer = always(500, "no")
    await store.create_stream(push_app.app.database, "orders")
    await push_app.app.publish_many("orders", [(f"k.{n % 2}", n) for n in range(6)])
    await push_app.declare(endpoint.url, batch=100, max_deliver=2, backoff=Backoff.of(0))
    await push_app.done()
    letters = await dead_letters(push_app.app, "ship")
    assert [(dead_letter.data, dead_letter.attempts) for dead_letter in letters] == [(n, 2) for n in range(6)]
    assert {(dead_letter.error, dead_letter.traceback) for dead_letter in letters} == {
        ("The endpoint responded with 500 Internal Server Error: no", None)
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("batch", [None, 10])
@pytest.mark.parametrize("status", [429, 503])
async def test_429_and_503_may_say_when_to_come_again(
    push_app: PushApp, endpoint: Endpoint, status: int, batch: int | None
) -> None:
    endpoint.answer = always(status, retry_after="1800")
    await push_app.declare(endpoint.url, backoff=Backoff.of(0), batch=batch)
    await push_app.app.publish("orders", "k", 1)
    row = await push_app.parked(attempts=1)
    assert 1740 < row["due_in"] <= 1800


@pytest.mark.asyncio
async def test_a_redirect_is_not_followed(push_app: PushApp, endpoint: Endpoint) -> None:
    endpoint.answer = always(307, location=endpoint.url.replace("/hook", "/elsewhere"))
    await push_app.declare(endpoint.url, max_deliver=1)
    await push_app.app.publish("orders", "k", 1)
    await push_app.done()
    (dead_letter,) = await dead_letters(push_app.app, "ship")
    assert dead_letter.error is not None
    assert "307" in dead_letter.error
    assert "redirect to http://127.0.0.1" in dead_letter.error
    assert [request.path for request in endpoint.requests] == ["/hook"]


@pytest.mark.asyncio
async def test_no_answer_in_time_is_a_nack(push_app: PushApp, endpoint: Endpoint) -> None:
    gate = Gate()

    async def silent(_request: Request) -> web.StreamResponse:
        await gate.wait()
        return web.Response()

    endpoint.answer = silent
    await push_app.declare(endpoint.url, timeout=0.1, max_deliver=1)
    await push_app.app.publish("orders", "k", 1)
    await push_app.done()
    (dead_letter,) = await dead_letters(push_app.app, "ship")
    assert dead_letter.error == "The endpoint did not respond within 0.1 s"


@pytest.mark.asyncio
async def test_the_timeout_is_over_the_whole_answer(push_app: PushApp, endpoint: Endpoint) -> None:
    """Without a total timeout, an endpoint that sends a few bytes at a time would hold a key forever."""
    gate = Gate()

    async def dribbling(request: Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        response.content_length = 1000
        await response.prepare(request.raw)
        await response.write(b"a little")
        await gate.wait()
        return response

    endpoint.answer = dribbling
    await push_app.declare(endpoint.url, timeout=1, max_deliver=1)
    await push_app.app.publish("orders", "k", 1)
    await push_app.done()
    (dead_letter,) = await dead_letters(push_app.app, "ship")
    assert dead_letter.error == "The endpoint responded with 500 Internal Server Error"


@pytest.mark.asyncio
async def test_2xx_counts_whatever_comes_after_it(push_app: PushApp, endpoint: Endpoint) -> None:
    gate = Gate()

    async def dribbling(request: Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1000
        await response.prepare(request.raw)
        await response.write(b"a little")
        await gate.wait()
        return response

    endpoint.answer = dribbling
    await push_app.declare(endpoint.url, max_deliver=1)
    await push_app.app.publish("orders", "k", 1)
    info = await push_app.done()
    assert info.dead_letters == 0


@pytest.mark.asyncio
async def test_an_endless_answer_is_read_only_so_far(push_app: PushApp, endpoint: Endpoint) -> None:
    written = 0

    async def endless(request: Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(status=500)
        await response.prepare(request.raw)
        while written < 100_000_000:
            await response.write(b"x" * 50_000)
            written += 50_000
        return response

    endpoint.answer = endless
    await push_app.declare(endpoint.url, max_deliver=1)
    await push_app.app.publish("orders", "k", 1)
    info = await push_app.done()
    assert info.dead_letters == 1
    assert written < 50_000_000, "what the sockets hold, and no more"


@pytest.mark.asyncio
@pytest.mark.parametrize("batch", [None, 10])
async def test_an_endpoint_that_is_not_there_costs_no_attempt(
    push_app: PushApp, endpoint: Endpoint, batch: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    await listener.aclose()
    await push_app.declare(f"http://127.0.0.1:{port}/", max_deliver=1, batch=batch)
    await push_app.app.publish("orders", "k", 1)
    await push_app.parked(attempts=0)
    (released, *_) = logged(caplog, "message released", consumer="ship", key="k", retry_in=1.0)
    assert str(released.error).startswith(f"127.0.0.1:{port} can't be reached: ")  # type: ignore[attr-defined]
    async with listening(Endpoint(), port) as appeared:
        (request,) = await appeared.until(1)
        info = await push_app.done()
    assert (request.message if batch is None else request.messages[0])["attempt"] == 1
    assert info.dead_letters == 0


@pytest.mark.asyncio
async def test_a_connection_that_breaks_is_a_nack(push_app: PushApp, endpoint: Endpoint) -> None:
    async def hang_up(request: Request) -> web.StreamResponse:
        assert request.raw.transport is not None
        request.raw.transport.abort()
        return web.Response()

    endpoint.answer = hang_up
    await push_app.declare(endpoint.url, max_deliver=1)
    await push_app.app.publish("orders", "k", 1)
    await push_app.done()
    (dead_letter,) = await dead_letters(push_app.app, "ship")
    assert dead_letter.error is not None
    assert dead_letter.error.startswith("The request failed: ")


@pytest.mark.asyncio
async def test_connections_are_used_again(push_app: PushApp, endpoint: Endpoint) -> None:
    peers = set()

    async def noting(request: Request) -> web.StreamResponse:
        assert request.raw.transport is not None
        peers.add(request.raw.transport.get_extra_info("peername"))
        return web.Response(text="x" * 1000, status=500 if request.message["attempt"] == 1 else 200)

    endpoint.answer = noting
    await push_app.declare(endpoint.url, concurrency=(1, 1), backoff=Backoff.of(0))
    await push_app.app.publish_many("orders", [(f"k.{n}", n) for n in range(10)])
    await push_app.done()
    assert (len(endpoint.requests), len(peers)) == (20, 1)


@pytest.mark.asyncio
async def test_an_endpoint_that_fails_and_fails_is_probed_and_costs_no_attempts(
    push_app: PushApp, endpoint: Endpoint
) -> None:
    endpoint.answer = always(500)
    await store.create_stream(push_app.app.database, "orders")
    await push_app.app.publish_many("orders", [(f"k.{n}", n) for n in range(200)])
    await push_app.declare(endpoint.url, max_deliver=2, backoff=Backoff.of(0))

    async def is_left_alone() -> bool:
        running = push_app.push_consumers.statistics().get("orders:ship")
        return bool(running and running["breaker"]["state"] == "open" and not (await push_app.info()).in_flight)

    await eventually(is_left_alone)
    assert len(endpoint.requests) < 150
    assert (await push_app.info()).dead_letters < 100


@given(st.integers(0, 10**30))
def test_retry_after_in_seconds_is_bounded_by_an_hour(seconds: int) -> None:
    wait = responses.wait(503, {"retry-after": str(seconds)}, NOW)
    assert wait == (min(seconds, 3600) if seconds else None)


@given(st.integers(-(10**6), 10**6))
def test_retry_after_may_be_a_date(seconds: int) -> None:
    date = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert responses.wait(429, {"retry-after": date}, NOW) == (min(seconds, 3600) if seconds > 0 else None)


@given(st.text())
def test_a_retry_after_that_says_nothing_is_left_to_the_backoff(text: str) -> None:
    wait = responses.wait(503, {"retry-after": text}, NOW)
    assert wait is None or 0 < wait <= 3600


@given(st.binary(max_size=5000), st.text(max_size=50))
def test_a_reason_is_one_printable_line_of_bounded_length(body: bytes, phrase: str) -> None:
    text = responses.reason(500, phrase, {}, body)
    assert text.isprintable()
    assert len(text) < 1200
