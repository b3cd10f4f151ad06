"""The requests that push sends to an endpoint."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import time
from datetime import UTC, datetime, timedelta

import pytest

from headrace import store
from headrace.model.ack_ids import AckIds
from headrace.model.push import Push
from headrace.model.specs import Backoff, ConsumerSpec
from tests.server.push.endpoints import Endpoint, PushApp, always

pytestmark = pytest.mark.asyncio

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


async def test_a_message_comes_in_the_shape_that_receive_gives(push_app: PushApp, endpoint: Endpoint) -> None:
    await push_app.declare(endpoint.url)
    await push_app.app.publish("orders", "us.1", {"n": 1}, headers={"trace": "abc"})
    (request,) = await endpoint.until(1)
    assert (request.method, request.path) == ("POST", "/hook")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("headrace")
    assert set(request.json) == {"ack_id", "message"}
    message = request.message
    assert message["updated_at"] == message["inserted_at"]
    at = datetime.fromisoformat(message.pop("inserted_at"))
    del message["updated_at"]
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=10)
    stream = await store.stream(push_app.app.database, "orders")
    assert message == {
        "key": "us.1", "data": {"n": 1}, "seq": 1, "stream_id": stream.id, "headers": {"trace": "abc"}, "attempt": 1,
    }  # fmt: skip


async def test_a_batch_comes_as_a_list_of_no_more_than_was_asked_for(push_app: PushApp, endpoint: Endpoint) -> None:
    await store.create_stream(push_app.app.database, "orders")
    await push_app.app.publish_many("orders", [(f"k.{n % 3}", n) for n in range(25)])
    await push_app.declare(endpoint.url, batch=10, concurrency=(1, 1))
    await push_app.done()
    sizes = [len(request.messages) for request in endpoint.requests]
    assert max(sizes) == 10
    assert sum(sizes) == 25
    assert set(endpoint.requests[0].json) == {"data"}
    assert set(endpoint.requests[0].json["data"][0]) == {"ack_id", "message"}
    got = [message for request in endpoint.requests for message in request.messages]
    for key in ("k.0", "k.1", "k.2"):
        numbers = [message["data"] for message in got if message["key"] == key]
        assert numbers == sorted(numbers)
    assert sorted(message["data"] for message in got) == list(range(25))


async def test_a_payload_goes_out_as_it_was_stored(push_app: PushApp, endpoint: Endpoint) -> None:
    texts = ['{"b":1.0e2,  "a":123456789012345678901234567890}', '"a \\ud83d\\ude00 é"', "null", '"\\ud800"']
    texts.append("[" * 2000 + "]" * 2000)
    await push_app.declare(endpoint.url)
    for text in texts:
        await store.publish(push_app.app.database, "orders", "k", text)
    requests = await endpoint.until(len(texts))
    for request, text in zip(requests, texts, strict=True):
        assert b'"data":' + text.encode() + b',"seq"' in request.body


async def test_configured_headers_are_sent(push_app: PushApp, endpoint: Endpoint) -> None:
    headers = {"Authorization": "Bearer abc", "User-Agent": "mine", "x-shop": "smörgås"}
    await push_app.declare(endpoint.url, headers=headers)
    await push_app.app.publish("orders", "k", 1)
    (request,) = await endpoint.until(1)
    assert request.headers["authorization"] == "Bearer abc"
    assert request.headers.getall("user-agent") == ["mine"]  # type: ignore[attr-defined]
    assert request.headers["x-shop"] == "smörgås"


async def test_requests_are_signed_as_standard_webhooks_say(push_app: PushApp, endpoint: Endpoint) -> None:
    await push_app.declare(endpoint.url, secret=SECRET)
    before = int(time.time())
    await push_app.app.publish("orders", "k", {"n": 1})
    (request,) = await endpoint.until(1)
    identity, at = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    assert before <= int(at) <= time.time()
    version, _, signature = request.headers["webhook-signature"].partition(",")
    assert version == "v1"
    signed = identity.encode() + b"." + at.encode() + b"." + request.body
    # HMAC as RFC 2104 defines it, from the hash function alone.
    block = KEY.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + signed).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block) + inner).digest()
    assert base64.b64decode(signature) == outer


async def test_without_a_secret_nothing_is_signed(push_app: PushApp, endpoint: Endpoint) -> None:
    await push_app.declare(endpoint.url)
    await push_app.app.publish("orders", "k", 1)
    (request,) = await endpoint.until(1)
    assert "webhook-signature" not in request.headers
    assert "webhook-id" in request.headers


@pytest.mark.parametrize("batch", [None, 10])
async def test_a_message_keeps_its_id_when_it_comes_again(
    push_app: PushApp, endpoint: Endpoint, batch: int | None
) -> None:
    endpoint.answer = always(500)
    await push_app.declare(endpoint.url, max_deliver=3, backoff=Backoff.of(0), batch=batch)
    await push_app.app.publish_many("orders", [("k", 1), ("k", 2)])
    await endpoint.until(3)
    ids = [request.headers["webhook-id"] for request in endpoint.requests[:3]]
    assert len(set(ids)) == 1
    if batch is None:
        assert [request.message["attempt"] for request in endpoint.requests[:3]] == [1, 2, 3]
        await endpoint.until(4)
        assert endpoint.requests[3].message["data"] == 2
        assert endpoint.requests[3].headers["webhook-id"] not in ids


async def test_the_ack_id_settles_that_message_alone(push_app: PushApp, endpoint: Endpoint) -> None:
    """A lease of a pipeline has many messages. The ack id of one must not settle the others."""
    await push_app.declare(endpoint.url)
    await push_app.app.publish("orders", "k", 1)
    (request,) = await endpoint.until(1)
    key = await store.secret(push_app.app.database, "ack_ids")
    answer = AckIds(key).open(request.json["ack_id"])
    assert (answer.seq, answer.attempt) == (1, 1)
    assert answer.size == 0, "one that is named alone would be taken for the whole lease"


async def test_the_secret_is_not_disclosed(
    push_app: PushApp, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint.answer = always(500, "no")
    await push_app.declare(endpoint.url, secret=SECRET, max_deliver=1)
    await push_app.app.publish("orders", "k", 1)
    await push_app.done()
    another = "whsec_" + base64.b64encode(bytes(range(1, 33))).decode()
    spec = ConsumerSpec(stream="orders", name="ship", push=Push(url=endpoint.url, secret=another))
    declared = await store.declare_consumer(push_app.app.database, spec)
    assert "push" in declared.changed
    info = await push_app.info()
    assert info.settings["push"]["secret"] == "…"
    (dead_letter,) = await store.dead_letters(push_app.app.database, 1)
    for place in (caplog.text, repr(info), repr(dead_letter), repr(spec), repr(declared), json.dumps(endpoint.data)):
        for secret in (SECRET, another):
            assert secret[6:] not in place
