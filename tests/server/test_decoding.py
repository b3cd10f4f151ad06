"""Large and heavy bodies. They take their time without holding up other requests, and in a separate process."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import pickle
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from headrace.model.errors import (
    HeadraceError,
    InDoubt,
    InvalidData,
    InvalidInput,
    StoreUnavailable,
    StreamFull,
    UnknownStream,
)
from headrace.model.messages import payloads
from headrace.server.data_plane.bounds import MAX_SETTLED
from headrace.server.data_plane.delivery_bodies import decode_nack, decode_settle
from headrace.server.decoding import child as child_module
from headrace.server.decoding import decoding as decoding_module
from headrace.server.decoding.decoding import LARGE, Decoding
from headrace.server.decoding.jobs import DeliveryHead
from headrace.server.decoding.process import PLACES_OF_CALLER
from headrace.server.engine import Engine
from headrace.server.errors import Problem, problem_of
from headrace.sources.webhook import WebhookSpec
from tests.runtime.running import eventually
from tests.server.calling import Api
from tests.server.conftest import Consume

LONGEST = 0.15
"""Seconds of processor time that a body may take in a row from other requests. It takes some 10 ms, and without a limit
between 0.3 and 1.5 s."""

FORM = (b"content-type", b"application/x-www-form-urlencoded")
SIZE = 9_000_000


class Longest:
    """The longest time in a row for which the event loop ran one callback, in seconds of processor time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(self._watch())
        await asyncio.sleep(0)
        try:
            yield
            await asyncio.sleep(0)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            self.seconds = max(self.seconds, time.thread_time() - began)


def _repeated(piece: bytes, size: int = SIZE) -> bytes:
    return b"[" + b",".join([piece] * (size // (len(piece) + 1))) + b"]"


HEAVY = {
    "backslashes": b'"' + b"\\\\" * (SIZE // 2) + b'\\\\u0000"',
    "small arrays": _repeated(b"[]"),
    "small objects": _repeated(b'{"a":1}'),
    "floats": _repeated(b"1.5"),
    "text": b'"' + b"x" * SIZE + b'"',
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", HEAVY)
async def test_a_heavy_message_is_published_beside_other_requests(api: Api, name: str) -> None:
    await api.stream()
    longest = Longest()
    async with longest.watched():
        body = b'{"key":"k","data":%b}' % HEAVY[name]
        answer = await api.client.post("/v1/streams/orders/messages", content=body)
    assert answer.status_code == 200, answer.text
    assert longest.seconds < LONGEST
    assert api.server.limits.decoding._child is not None


@pytest.mark.asyncio
async def test_too_many_messages_are_refused_beside_other_requests(api: Api) -> None:
    await api.stream()
    longest = Longest()
    body = b'{"messages":[' + b",".join([b'{"key":"k","data":1}'] * 400_000) + b"]}"
    async with longest.watched():
        answer = await api.client.post("/v1/streams/orders/messages", content=body)
    assert answer.status_code == 422
    assert answer.json()["validation_errors"] == {"messages": ["A request has 400,000 messages. Send 1 to 10,000."]}
    assert longest.seconds < LONGEST


@pytest.mark.asyncio
async def test_a_large_form_is_delivered_beside_other_requests(api: Api) -> None:
    await api.stream()
    await api.post("/sources", {"name": "hook", "stream": "orders", "max_body": 10_000_000, "key": "{body.a}"}, 201)
    for size in (900_000, SIZE):
        longest = Longest()
        async with longest.watched():
            answer = await api.client.post(
                "/v1/webhook/hook",
                content=b"a=" + b"%41" * (size // 3),
                headers={FORM[0].decode(): FORM[1].decode()},
            )
        assert answer.status_code == 200, answer.text
        assert longest.seconds < LONGEST, size
    last = (await api.get("/streams/orders/messages", sort="seq_asc"))["data"]
    assert [type(one["data"]) for one in last] == [dict, str], "a form of more than 1 MB is kept as text"


@pytest.mark.asyncio
async def test_too_many_ids_are_refused_before_they_are_decoded(api: Api) -> None:
    await api.stream()
    await api.consumer()
    longest = Longest()
    body = b'{"ack_ids":[' + b",".join([b'""'] * 600_000) + b"]}"
    async with longest.watched():
        answer = await api.client.post("/v1/streams/orders/consumers/ship/ack", content=body)
    assert (answer.status_code, list(answer.json()["validation_errors"])) == (422, ["ack_ids"])
    assert longest.seconds < 0.05
    answer = await api.client.post("/v1/streams/orders/consumers/ship/ack", content=b" " * 2_000_001)
    assert answer.status_code == 413


def test_the_marks_of_texts_are_no_ids() -> None:
    marks = '"\\' * 50_000
    assert decode_nack(msgspec.json.encode({"ack_ids": ["a"], "error": marks})).error == marks
    ids = ["a"] * MAX_SETTLED
    assert decode_settle(msgspec.json.encode({"ack_ids": ids, "ack_tokens": []})).ack_ids == ids
    for one in (b'""', b'"\\""', b'"\\\\"', b'"a"'):
        with pytest.raises(Problem):
            decode_settle(b'{"ack_ids":[' + b",".join([one] * (2 * MAX_SETTLED + 200)) + b"]}")


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (r'"\u0000"', False), (r'"a\u0000"', False), (r'"\\u0000"', True), (r'"\\\u0000"', False), (r'"\\\\u0000"', True),
        (r'"\n\\u0000"', True), (r'"\n\u0000"', False), (r'"\"\u0000"', False), (r'"\\\\\\\\\u0000"', False),
        (r'"\u00000"', False), (r'"u0000"', True), (r'"\u0001\\u0000\\\\"', True), (r'{"\u0000":1}', False),
    ],
)  # fmt: skip
def test_a_nul_is_found_behind_any_number_of_backslashes(text: str, valid: bool) -> None:
    assert ("\0" not in str(msgspec.json.decode(text))) == valid or "{" in text
    if valid:
        assert payloads.encode(msgspec.Raw(text.encode())) == text
    else:
        with pytest.raises(InvalidData):
            payloads.encode(msgspec.Raw(text.encode()))


# --- the process


@asynccontextmanager
async def running() -> AsyncIterator[Decoding]:
    decoding = Decoding()
    task = asyncio.ensure_future(decoding.run(None))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    try:
        yield decoding
    finally:
        decoding.drain()
        await task
        assert decoding._child is None


def _head(**settings: Any) -> DeliveryHead:
    spec = WebhookSpec(name="hook", stream="orders", **settings)
    return DeliveryHead(spec, [FORM, (b"x-github-event", b"push"), (b"x-\xff", b"\xff")], b"q=1", 0.0)


def _signed(body: bytes) -> DeliveryHead:
    head = _head(signature="github", secrets=("s",), keep_headers=("x-github-event",))
    signature = hmac.new(b"s", body, hashlib.sha256).hexdigest().encode()
    return msgspec.structs.replace(head, headers=[*head.headers, (b"x-hub-signature-256", b"sha256=" + signature)])


_TEXT = b"x" * LARGE
_SCHEDULED = b'"deliver_at":"2030-01-01T00:00:00+02:00","message_id":"m","headers":{"a":"b"},"expires_in_ms":1000'
JOBS: list[tuple[bytes, DeliveryHead | None]] = [
    (b'{"key":"k","data":"%b\xc3\xa4"}' % _TEXT, None),
    (b'{"key":"k",%b,"data":"%b"}' % (_SCHEDULED, _TEXT), None),
    (b'{"key":"k","message_id":"twice","data":"%b"}' % _TEXT, None),
    (b'{"key":"k","message_id":"twice","data":"%b"}' % _TEXT, None),
    (b'{"messages":[{"key":"a","data":"%b"},{"key":"b","data":1,"unique_key":"u"}]}' % _TEXT, None),
    (b'{"messages":[{"key":"a","data":"%b"},{"key":"b","data":"\\u0000"}]}' % _TEXT, None),
    (b'{"messages":[{"key":"a","data":"%b"},{"key":"no..key","data":1}]}' % _TEXT, None),
    (b'{"messages":[{"key":"a","data":"%b"},{"key":"b","data":1,"message_id":"%b"}]}' % (_TEXT, b"m" * 300), None),
    (b'{"messages":[%b]}' % (b" " * LARGE), None),
    (b'{"key":"k","data":"%b"' % _TEXT, None),
    (b'{"key":1,"data":"%b"}' % _TEXT, None),
    (b'{"key":"k","data":"\xff%b"}' % _TEXT, None),
    (b'{"key":"k","data":%b}' % (b"[" * LARGE), None),
    (b"a=1&b=%b" % _TEXT, _head(key="k.{body.a}.{header.x-github-event}.{query.q}")),
    (b"a=1&b=%b" % _TEXT, _signed(b"a=1&b=%b" % _TEXT)),
    (b"a=1&b=%b" % _TEXT, _signed(b"")),
    (b"\xff%b" % _TEXT, _head()),
]  # fmt: skip


async def _published(decoding: Decoding, engine: Engine, stream: str, job: tuple[bytes, DeliveryHead | None]) -> Any:
    body, head = job
    pieces = [body[:1], body[1:100_000], body[100_000:]]
    try:
        return await decoding.publish("shop", pieces, engine, await engine.stream(stream), head)
    except Exception as error:
        return vars(problem_of(error)) | {"text": str(problem_of(error))}


@pytest.mark.process
@pytest.mark.asyncio
async def test_the_process_publishes_what_the_server_would_and_refuses_it_in_the_same_words(engine: Engine) -> None:
    await engine.app.admin.create_stream("twin")
    async with running() as decoding:
        for job in JOBS:
            expected = await _published(Decoding(), engine, "twin", job)
            assert await _published(decoding, engine, "orders", job) == expected, job[0][:60]
            assert decoding._child is not None
    columns = "key, md5(data::text), headers::text"
    one, other = [
        await engine.app.database.fetch(f"select {columns} from headrace_streams.{name} order by seq")
        for name in ("orders", "twin")
    ]
    assert one == other
    assert engine.counts.published == 2 * (len(one) + 1), "one is scheduled"


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_stream_that_was_deleted_is_refused_and_forgotten(engine: Engine) -> None:
    stream = await engine.stream("orders")
    async with running() as decoding:
        assert await _publish(decoding, engine, "a") == 1
        await engine.app.admin.delete_stream("orders", force=True)
        with pytest.raises(UnknownStream):
            await decoding.publish("shop", [_body("b")], engine, stream)
    assert engine.cached_stream("orders") is None


@pytest.mark.process
@pytest.mark.asyncio
async def test_consumers_of_the_server_are_woken(engine: Engine, consume: Consume) -> None:
    consumer = await consume()
    async with running() as decoding, asyncio.timeout(20):
        waiting = asyncio.ensure_future(engine.receive(consumer, 1, 20))
        await _publish(decoding, engine, "a")
        assert [one.key for one in (await waiting).messages] == ["a"]


def _body(key: str) -> bytes:
    return b'{"key":"%b","data":"%b"}' % (key.encode(), _TEXT)


async def _publish(decoding: Decoding, engine: Engine, key: str, caller: str = "shop") -> int:
    return (await decoding.publish(caller, [_body(key)], engine, await engine.stream("orders"))).count


async def _keys(engine: Engine) -> list[str]:
    return [row[0] for row in await engine.app.database.fetch("select key from headrace_streams.orders order by seq")]


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_process_that_dies_leaves_its_bodies_in_doubt_and_is_replaced(engine: Engine) -> None:
    async with running() as decoding:
        assert await _publish(decoding, engine, "a") == 1
        child = decoding._child
        assert child is not None
        os.kill(child.process.pid, signal.SIGSTOP)
        waiting = asyncio.ensure_future(_publish(decoding, engine, "b"))
        await eventually(_async(lambda: bool(child.answers)))
        os.kill(child.process.pid, signal.SIGKILL)
        with pytest.raises(InDoubt) as found:
            await waiting
        assert problem_of(found.value).status == 503
        assert await _publish(decoding, engine, "c") == 1
        assert decoding._child is not child
    assert await _keys(engine) == ["a", "c"]


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_request_that_is_cancelled_leaves_its_result_to_no_other(engine: Engine) -> None:
    async with running() as decoding:
        await _publish(decoding, engine, "a")
        async with _held(engine, "orders"):
            waiting = asyncio.ensure_future(_publish(decoding, engine, "b"))
            await eventually(lambda: _waits_for_lock(engine))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            following = asyncio.ensure_future(_publish(decoding, engine, "c"))
        assert await following == 1
    assert sorted(await _keys(engine)) == ["a", "b", "c"]


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_body_of_which_only_a_part_was_sent_is_not_published(engine: Engine) -> None:
    async with running() as decoding:
        await _publish(decoding, engine, "a")
        child = decoding._child
        assert child is not None
        os.kill(child.process.pid, signal.SIGSTOP)
        body = b'{"key":"b","data":%b}' % HEAVY["text"]
        waiting = asyncio.ensure_future(decoding.publish("shop", [body], engine, await engine.stream("orders")))
        await eventually(_async(lambda: child.answers))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await _publish(decoding, engine, "c") == 1
    assert await _keys(engine) == ["a", "c"]


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_publish_that_waits_holds_up_its_caller_alone(engine: Engine) -> None:
    await engine.app.admin.create_stream("other")
    other = await engine.stream("other")
    async with running() as decoding:
        await _publish(decoding, engine, "a")
        async with _held(engine, "orders"):
            waiting = [asyncio.ensure_future(_publish(decoding, engine, key)) for key in "bcd"]
            assert (await decoding.publish("calm", [_body("k")], engine, other)).count == 1
            assert not any(one.done() for one in waiting)
            assert decoding._child is not None
            child = decoding._child
            await eventually(_async(lambda: len(child.answers) == PLACES_OF_CALLER))
        assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert sorted(await _keys(engine)) == ["a", "b", "c", "d"]


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_body_in_the_process_is_published_before_the_server_ends(engine: Engine) -> None:
    async with running() as decoding:
        await _publish(decoding, engine, "a")
        async with _held(engine, "orders"):
            waiting = asyncio.ensure_future(_publish(decoding, engine, "b"))
            await eventually(lambda: _waits_for_lock(engine))
            decoding.drain()
            await eventually(_async(lambda: not decoding._running))
            assert not waiting.done()
        assert await waiting == 1
        assert await _publish(decoding, engine, "c") == 1, "the server does it itself"
    assert await _keys(engine) == ["a", "b", "c"]


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_database_that_is_away_is_unavailable_and_used_when_it_is_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await engine.stream("orders")
    async with running() as decoding:
        with monkeypatch.context() as patch:
            patch.setattr(engine.app.database, "dsn", "postgresql://127.0.0.1:1/nowhere")
            with pytest.raises(StoreUnavailable):
                await decoding.publish("shop", [_body("a")], engine, stream)
        assert await _publish(decoding, engine, "b") == 1
        await engine.app.database.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
        await eventually(lambda: _publishes(decoding, engine))


async def _publishes(decoding: Decoding, engine: Engine) -> bool:
    try:
        return await _publish(decoding, engine, "c") == 1
    except StoreUnavailable:
        return False


@pytest.mark.process
@pytest.mark.asyncio
async def test_the_event_loop_only_passes_on_pieces(engine: Engine) -> None:
    stream = await engine.stream("orders")
    body = b'{"key":"k","data":%b}' % HEAVY["text"]
    pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
    async with running() as decoding:
        await _publish(decoding, engine, "a")
        longest = Longest()
        async with longest.watched():
            await decoding.publish("shop", pieces, engine, stream)
    assert longest.seconds < 0.015, "to copy the body once takes half as long"


@pytest.mark.process
@pytest.mark.asyncio
async def test_where_no_process_can_be_started_the_server_publishes_itself(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module.sys, "executable", "/nonexistent/python")
    async with running() as decoding:
        for _ in range(2):
            assert await _publish(decoding, engine, "k") == 1
            assert decoding._child is None
    monkeypatch.setattr(child_module.sys, "executable", "/bin/true")
    async with running() as decoding:
        assert await _publish(decoding, engine, "k") == 1


@pytest.mark.process
@pytest.mark.asyncio
async def test_without_a_large_body_there_is_no_process_and_after_a_while_none_any_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as decoding:
        await decoding.publish("shop", [b'{"key":"k","data":1}'], engine, await engine.stream("orders"))
        assert decoding._child is None
    monkeypatch.setattr(decoding_module, "IDLE", 0.05)
    async with running() as decoding:
        await _publish(decoding, engine, "k")
        await eventually(_async(lambda: decoding._child is None))
        assert await _publish(decoding, engine, "k") == 1


@pytest.mark.parametrize(
    "error",
    [
        Problem(401, "invalid_signature", "No.", validation_errors={"a": ["b"]}, headers={"c": "d"}, more={"e": 1}),
        InvalidInput("The key is invalid.", field="key"),
        UnknownStream("There is none."),
        StreamFull("It is full."),
        StoreUnavailable("at 127.0.0.1").with_public("Away."),
    ],
)
def test_errors_pass_between_processes(error: HeadraceError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@asynccontextmanager
async def _held(engine: Engine, stream: str) -> AsyncIterator[None]:
    """Hold up all publishes to a stream."""
    async with engine.app.database.transaction() as connection:
        await connection.execute(f"lock table headrace_streams.{stream} in access exclusive mode")
        yield


async def _waits_for_lock(engine: Engine) -> Any:
    return await engine.app.database.fetchval(
        "select exists (select from pg_locks as l join pg_database as d on d.oid = l.database where d.datname = current_database() and not l.granted)"
    )


def _async(condition: Callable[[], Any]) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return bool(condition())

    return check
