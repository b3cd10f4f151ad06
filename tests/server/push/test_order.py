"""Messages of a key are pushed in order, whatever endpoints answer."""

from __future__ import annotations

import zlib

import pytest
from aiohttp import web

from headrace import store
from headrace.model.specs import Backoff
from tests.runtime.running import Gate
from tests.server.push.endpoints import Endpoint, PushApp, Request, running_push

pytestmark = pytest.mark.asyncio

KEYS = 12
COUNT = 300


def fails(seq: int, attempt: int) -> bool:
    """Whether this attempt fails. A third of all attempts fail, spread evenly, and the fifth succeeds."""
    return attempt < 5 and zlib.crc32(f"{seq}.{attempt}".encode()) % 3 == 0


class Ledger:
    """Records what was acked, in order, and whether a message came that should not have."""

    def __init__(self) -> None:
        self.acked: dict[str, list[int]] = {}
        self.inside: set[str] = set()
        self.wrong: list[str] = []

    def begin(self, key: str) -> None:
        if key in self.inside:
            self.wrong.append(f"two of {key} at a time")
        self.inside.add(key)

    def end(self, key: str, number: int, *, acked: bool) -> None:
        self.inside.discard(key)
        if acked:
            self.acked.setdefault(key, []).append(number)

    def check(self) -> None:
        assert self.wrong == []
        assert self.acked == {f"k.{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)}


async def publish(push_app: PushApp) -> None:
    await store.create_stream(push_app.app.database, "orders")
    await push_app.app.publish_many("orders", [(f"k.{n % KEYS}", n) for n in range(COUNT)])


async def test_single_messages_of_a_key_come_in_order_and_one_at_a_time_though_some_fail(
    push_app: PushApp, endpoint: Endpoint
) -> None:
    ledger = Ledger()

    async def now_and_then(request: Request) -> web.StreamResponse:
        message = request.message
        ledger.begin(message["key"])
        failed = fails(message["seq"], message["attempt"])
        ledger.end(message["key"], message["data"], acked=not failed)
        return web.Response(status=500 if failed else 204)

    endpoint.answer = now_and_then
    await publish(push_app)
    await push_app.declare(endpoint.url, concurrency=(8, 8), backoff=Backoff.of(0))
    info = await push_app.done()
    assert info.dead_letters == 0
    ledger.check()


async def test_batches_keep_the_order_of_keys_though_some_fail(push_app: PushApp, endpoint: Endpoint) -> None:
    ledger = Ledger()

    async def now_and_then(request: Request) -> web.StreamResponse:
        messages = request.messages
        keys = {message["key"] for message in messages}
        for key in keys:
            ledger.begin(key)
        failed = fails(messages[0]["seq"], messages[0]["attempt"])
        for message in messages:
            ledger.end(message["key"], message["data"], acked=not failed)
        return web.Response(status=500 if failed else 204)

    endpoint.answer = now_and_then
    await publish(push_app)
    await push_app.declare(endpoint.url, concurrency=(4, 4), batch=7, backoff=Backoff.of(0), max_deliver=-1)
    info = await push_app.done()
    assert info.dead_letters == 0
    ledger.check()


async def test_two_servers_share_the_work_and_keep_the_order(dsn: str, endpoint: Endpoint) -> None:
    ledger = Ledger()
    both = Gate()

    async def together(request: Request) -> web.StreamResponse:
        message = request.message
        ledger.begin(message["key"])
        await both.wait()
        ledger.end(message["key"], message["data"], acked=True)
        return web.Response(status=204)

    endpoint.answer = together
    async with running_push(dsn) as one, running_push(dsn) as other:
        await publish(one)
        await one.declare(endpoint.url, concurrency=(1, 1), max_ack_pending=20)
        other.push_consumers.refresh()
        await both.until(2)  # each of the two sends one message at a time
        both.open()
        info = await one.done()
        sent = [side.push_consumers.statistics()["orders:ship"]["acked"] for side in (one, other)]
    assert sum(sent) == COUNT
    assert min(sent) > 0
    assert info.dead_letters == 0
    ledger.check()
