"""Large and heavy bodies. They take their time without holding up other requests, and in a process of their own."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from headrace.model import payloads
from headrace.model.errors import InvalidData, StoreUnavailable
from headrace.server.data_plane.bodies import decode_nack, decode_settle
from headrace.server.data_plane.bounds import MAX_SETTLED
from headrace.server.decoding import decoding as decoding_module
from headrace.server.decoding.decoding import LARGE, Decoding
from headrace.server.decoding.jobs import DeliveryHead, decoded
from headrace.server.errors import Problem, problem_of
from headrace.sources.webhook import WebhookSpec
from tests.runtime.running import eventually
from tests.server.calling import Api

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
    assert api.server.limits.decoding._process is not None


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
        assert decoding._process is None


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
    (b'{"messages":[{"key":"a","data":"%b"},{"key":"b","data":1,"unique_key":"u"}]}' % _TEXT, None),
    (b'{"messages":[{"key":"a","data":"%b"},{"key":"b","data":"\\u0000"}]}' % _TEXT, None),
    (b'{"key":"k","data":"%b"' % _TEXT, None),
    (b'{"key":1,"data":"%b"}' % _TEXT, None),
    (b'{"key":"k","data":"\xff%b"}' % _TEXT, None),
    (b'{"key":"k","data":%b}' % (b"[" * LARGE), None),
    (b"a=1&b=%b" % _TEXT, _head(key="k.{body.a}.{header.x-github-event}.{query.q}")),
    (b"a=1&b=%b" % _TEXT, _signed(b"a=1&b=%b" % _TEXT)),
    (b"a=1&b=%b" % _TEXT, _signed(b"")),
    (b"\xff%b" % _TEXT, _head()),
]  # fmt: skip


@pytest.mark.process
@pytest.mark.asyncio
async def test_the_process_decodes_what_the_server_would_and_refuses_it_in_the_same_words() -> None:
    async with running() as decoding:
        for body, head in JOBS:
            try:
                expected: Any = decoded(body, head)
            except Exception as error:
                expected = vars(problem_of(error)) | {"text": str(problem_of(error))}
            try:
                found: Any = await decoding.decode("shop", body, head)
            except Problem as problem:
                found = vars(problem) | {"text": str(problem)}
            assert decoding._process is not None
            assert found == expected, body[:60]


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_process_that_dies_fails_one_body_and_is_replaced() -> None:
    body = b'{"key":"k","data":"%b"}' % _TEXT
    async with running() as decoding:
        assert len(await decoding.decode("shop", body)) == 1
        process = decoding._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        waiting = asyncio.ensure_future(decoding.decode("shop", body))
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(StoreUnavailable):
            await waiting
        assert len(await decoding.decode("shop", body)) == 1
        assert decoding._process is not process


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_request_that_is_cancelled_leaves_its_reply_to_no_other() -> None:
    async with running() as decoding:
        first = asyncio.ensure_future(decoding.decode("shop", b'{"key":"a","data":"%b"}' % _TEXT))
        await eventually(lambda: _has_process(decoding))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await decoding.decode("shop", b'{"key":"b","data":"%b"}' % _TEXT)).keys == ["b"]


async def _has_process(decoding: Decoding) -> bool:
    return decoding._process is not None


@pytest.mark.process
@pytest.mark.asyncio
async def test_where_no_process_can_be_started_the_server_decodes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"key":"k","data":"%b"}' % _TEXT
    monkeypatch.setattr(decoding_module.sys, "executable", "/nonexistent/python")
    async with running() as decoding:
        for _ in range(2):
            assert len(await decoding.decode("shop", body)) == 1
            assert decoding._process is None
    monkeypatch.setattr(decoding_module.sys, "executable", "/bin/true")
    async with running() as decoding:
        assert len(await decoding.decode("shop", body)) == 1


@pytest.mark.process
@pytest.mark.asyncio
async def test_without_a_large_body_there_is_no_process_and_after_a_while_none_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as decoding:
        await decoding.decode("shop", b'{"key":"k","data":1}')
        assert decoding._process is None
    monkeypatch.setattr(decoding_module, "IDLE", 0.05)
    async with running() as decoding:
        await decoding.decode("shop", b'{"key":"k","data":"%b"}' % _TEXT)
        await eventually(lambda: _has_none(decoding))
        assert len(await decoding.decode("shop", b'{"key":"k","data":"%b"}' % _TEXT)) == 1


async def _has_none(decoding: Decoding) -> bool:
    return decoding._process is None
