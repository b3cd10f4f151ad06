"""A stream is deleted while it is in use, and another one with its name is created immediately.

Workers, publishers, waiting requests and push use it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest

from headrace import App, UnknownStream, store
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec
from headrace.server.asgi import Server
from headrace.server.options import Options
from tests.runtime.running import WITHIN, Gate, Seen, eventually
from tests.server.calling import Api
from tests.server.push.endpoints import Endpoint, listening
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio


async def test_a_stream_that_is_deleted_at_work_goes_as_a_whole_and_a_new_one_of_its_name_works(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    app, events, gate = App(dsn, shutdown_timeout=1), Seen(), Gate()
    server = Server(app, Options(push_allow=("loopback",)))

    @app.consumer("orders")
    async def ship(payload: str) -> None:
        await gate.wait()

    @app.consumer("events")
    async def note(payload: str) -> None:
        events.note(payload)

    async with (
        listening(Endpoint()) as endpoint,
        asyncio.timeout(WITHIN),
        app.running(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=server), base_url="http://localhost") as client,
    ):
        api = Api(client, server)
        await declare(app, endpoint)
        await app.publish("orders", "k", "old")
        await app.publish("orders", "k", "old", delay="30m")
        await endpoint.until(1)
        await gate.until(1)
        taken = await api.receive("poll")
        waiting = asyncio.create_task(
            client.post("/v1/streams/orders/consumers/poll/receive", json={"wait_for": 60_000})
        )
        await eventually(lambda: is_waiting(server))

        await app.admin.delete_stream("orders", force=True)
        assert (await waiting).status_code == 404
        with pytest.raises(UnknownStream):
            await app.publish("orders", "k", "lost")
        await store.create_stream(app.database, "orders")
        await declare(app, endpoint)
        await app.publish("orders", "k", "new")
        await endpoint.until(2)
        assert endpoint.data == ["old", "new"]
        (found,) = await eventually(lambda: received(client))
        assert found["message"]["data"] == "new"
        assert await is_stale(api, taken[0]["ack_id"])
        gate.open()
        await app.publish("events", "k", "on")
        assert await events.until(1) == ["on"]
        assert {name: one["deleted"] for name, one in app.statistics()["consumers"].items()} == {
            "orders:ship": True, "events:note": False, "orders:hook": False,
        }  # fmt: skip
    [record] = caplog.records
    assert logged(caplog, "consumer deleted", consumer="ship", stream="orders") == [record]


async def declare(app: App, endpoint: Endpoint) -> None:
    hook = ConsumerSpec(stream="orders", name="hook", push=Push(url=endpoint.url))
    for spec in (hook, ConsumerSpec(stream="orders", name="poll")):
        await store.declare_consumer(app.database, spec)


async def is_waiting(server: Server) -> bool:
    return bool(server.engine.statistics()["waiting"])


async def received(client: httpx.AsyncClient) -> list[dict[str, dict[str, str]]]:
    """Receive messages. The server may answer that there are none while it still remembers the old consumer."""
    answer = await client.post("/v1/streams/orders/consumers/poll/receive", json={"batch_size": 10})
    return list(answer.json()["data"]) if answer.status_code == 200 else []


async def is_stale(api: Api, ack_id: str) -> bool:
    answer = await api.refused(
        "POST", "/streams/orders/consumers/poll/ack", {"ack_ids": [ack_id], "strict": True}, status=409
    )
    return answer["stale"] == [ack_id]
