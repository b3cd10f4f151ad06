"""The calls of a client after its consumer was deleted: its late acks change nothing, also where another consumer has the name
by then, and at a server that still has the deleted one cached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from headrace import App
from headrace.model.errors import InUse
from headrace.server.asgi import Server
from tests.runtime.running import eventually
from tests.server.calling import Api
from tests.server.test_deleted_streams import is_waiting

pytestmark = pytest.mark.asyncio

_SHIP = "/streams/orders/consumers/ship"
_VERBS = ("ack", "nack", "extend")
_WAYS = [_SHIP, "/http_pull_consumers/ship", "/http-consumers/ship", "/consumers/ship"]


def ways(verb: str) -> list[str]:
    """The paths of a verb, in all dialects."""
    return [f"{path}/{verb}" for path in _WAYS if verb != "extend" or path == _SHIP]


@pytest_asyncio.fixture
async def other(dsn: str) -> AsyncIterator[Api]:
    """Another server of the same database."""
    app = App(dsn)
    server = Server(app)
    async with app.running():
        transport = httpx.ASGITransport(app=server)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Api(client, server)


async def held(api: Api, *keys: str) -> list[str]:
    """Publish messages to a consumer, receive them, and return their ack ids."""
    await api.stream()
    await api.consumer()
    await api.publish(*((key, number) for number, key in enumerate(keys)))
    return [one["ack_id"] for one in await api.receive()]


@pytest.mark.parametrize("whole", [True, False], ids=["all", "some"])
async def test_late_acks_of_a_deleted_consumer_change_nothing_for_a_new_one(api: Api, other: Api, whole: bool) -> None:
    ack_ids = await held(api, "a", "b", "c")
    late = ack_ids if whole else ack_ids[:1]
    await other.get(_SHIP)  # which caches the consumer there
    assert (await api.call("DELETE", _SHIP))["deleted"] is True
    for verb in _VERBS:
        for path in ways(verb):
            for server in (api, other):  # the other one may still have it cached
                assert await server.post(path, {"ack_ids": late}) == {"success": True}
                answer = await server.refused("POST", path, {"ack_ids": late, "strict": True}, status=409)
                assert answer["stale"] == late
            answer = await api.refused("POST", path, {"ack_ids": [*late, "nonsense"]}, status=404)
            assert answer["code"] == "unknown_consumer"
    await api.consumer()
    again = await api.receive(batch_size=3)
    assert [one["message"]["attempt"] for one in again] == [1, 1, 1], "nothing was lost"
    for server in (api, other):
        for verb in _VERBS:
            for path in ways(verb):
                assert await server.post(path, {"ack_ids": late}) == {"success": True}
                answer = await server.refused("POST", path, {"ack_ids": late, "strict": True}, status=409)
                assert answer["stale"] == late
    info = (await api.get(_SHIP))["info"]
    assert (info["num_ack_pending"], info["num_pending"]) == (3, 0), "nothing was acked for the new one"
    assert await api.post(f"{_SHIP}/ack", {"ack_ids": [one["ack_id"] for one in again], "strict": True})


async def test_late_acks_of_a_deleted_stream_change_nothing_in_a_new_one(api: Api, other: Api) -> None:
    late = await held(api, "a", "b")
    await other.get(_SHIP)
    assert (await api.call("DELETE", "/streams/orders"))["deleted"] is True
    for server in (api, other):
        assert await server.post(f"{_SHIP}/ack", {"ack_ids": late}) == {"success": True}
    again = await held(api, "a", "b")
    for server in (api, other):
        answer = await server.refused("POST", f"{_SHIP}/ack", {"ack_ids": late, "strict": True}, status=409)
        assert answer["stale"] == late
    assert (await api.get(_SHIP))["info"]["num_ack_pending"] == len(again) == 2


async def test_acks_of_a_consumer_that_is_there_are_not_taken_under_a_wrong_name(api: Api) -> None:
    """A client with a mistyped name must learn of it, since its messages will be redelivered."""
    ack_ids = await held(api, "a", "b")
    await api.consumer("gone")
    gone = [one["ack_id"] for one in await api.receive("gone")]
    await api.call("DELETE", "/streams/orders/consumers/gone")
    bodies: list[Any] = [{"ack_ids": ack_ids}, {"ack_ids": [*gone, *ack_ids]}, {"ack_ids": []}, {}, {"ack_ids": 1}, []]
    for verb in _VERBS:
        for body in bodies:
            for path in ways(verb):
                answer = await api.refused("POST", path.replace("ship", "shop"), body, status=404)
                assert answer["code"] == "unknown_consumer"
    answer = await api.client.post("/v1/streams/orders/consumers/shop/ack", content=b"\xff{")
    assert answer.status_code == 404


async def _headers(api: Api, *scopes: str) -> dict[str, str]:
    """Return the headers of a client with a new token."""
    created = await api.post("/tokens", {"name": f"t{uuid4().hex}", "scopes": list(scopes)}, 201)
    return {"authorization": f"Bearer {created['token']}"}


async def _ack_answers(api: Api, path: str, ack_ids: list[str], headers: dict[str, str]) -> list[tuple[int, Any]]:
    """Return the answers to an ack, a strict one, and one of ids that are not all valid."""
    bodies = [{"ack_ids": ack_ids}, {"ack_ids": ack_ids, "strict": True}, {"ack_ids": [*ack_ids, "nonsense"]}]
    answers = [await api.client.post(api.prefix + path, json=body, headers=headers) for body in bodies]
    return [(answer.status_code, answer.json().get("code")) for answer in answers]


async def test_late_acks_with_a_token_for_the_stream_are_stale_in_all_dialects(api: Api) -> None:
    late = await held(api, "a")
    stream = (await api.get("/streams/orders"))["id"]
    api.client.headers.update(await _headers(api, "admin"))
    tenant = await _headers(api, "consume:orders")
    assert (await api.call("DELETE", _SHIP))["deleted"] is True
    paths = ["/http_pull_consumers/ship", "/http-consumers/ship", "/consumers/ship", "/consumers/orders:ship", _SHIP]
    for path in paths:
        answers = await _ack_answers(api, f"{path}/ack", late, tenant)
        assert answers[:2] == [(200, None), (409, "lease_lost")], path
        assert answers[2][0] in (403, 404)
    assert (await api.call("DELETE", "/streams/orders"))["deleted"] is True
    for path in [*paths, f"/streams/{stream}/consumers/ship", f"/consumers/{stream}:ship"]:
        answers = await _ack_answers(api, f"{path}/ack", late, tenant)
        assert answers[:2] == [(200, None), (409, "lease_lost")], path


async def test_no_ack_tells_a_stranger_whether_a_consumer_exists(api: Api) -> None:
    """Also with genuine ack ids, such as those of a log."""
    ids = await held(api, "a")
    await api.consumer("old")
    old = [one["ack_id"] for one in await api.receive("old")]
    await api.stream("shop")
    await api.consumer("mine", "shop")
    await api.publish(("a", 1), stream="shop")
    own = [one["ack_id"] for one in await api.receive("mine", "shop")]
    api.client.headers.update(await _headers(api, "admin"))
    stranger, publisher = await _headers(api, "consume:shop"), await _headers(api, "publish:shop")
    assert (await api.call("DELETE", "/streams/orders/consumers/old"))["deleted"] is True
    for way in ("/consumers/{}/ack", "/streams/orders/consumers/{}/nack", "/streams/shop/consumers/{}/ack"):
        found = [
            await _ack_answers(api, way.format(name), given, stranger)
            for name in ("ship", "old", "never")
            for given in (ids, old)
        ]
        assert found.count(found[0]) == len(found), way
        if "orders" in way:  # decided by the name of the stream alone
            assert {status for status, _ in found[0]} == {403}
    for given in (ids, old):
        assert {status for status, _ in await _ack_answers(api, "/consumers/ship/ack", given, publisher)} == {403}
    wrong_name = await _ack_answers(api, "/consumers/mime/ack", own, stranger)
    assert {status for status, _ in wrong_name} == {403}, "messages of an existing consumer, under a mistyped name"
    assert (await api.get(_SHIP))["info"]["num_ack_pending"] == 1, "nothing was acked"


async def test_a_receive_that_waits_ends_when_its_consumer_is_deleted(api: Api) -> None:
    await api.stream()
    await api.consumer()
    waiting = asyncio.create_task(api.answer("POST", f"{_SHIP}/receive", {"wait_for": "60s"}))
    await eventually(lambda: is_waiting(api.server))
    assert (await api.call("DELETE", _SHIP))["deleted"] is True
    async with asyncio.timeout(20):
        assert (await waiting).status_code == 404


async def test_concurrent_deletes_and_acks_end_in_a_deleted_consumer(api: Api) -> None:
    ack_ids = await held(api, *(f"k{number}" for number in range(20)))
    deletes = [api.answer("DELETE", _SHIP) for _ in range(4)]
    acks = [api.answer("POST", f"{_SHIP}/ack", {"ack_ids": [one]}) for one in ack_ids]
    statuses = [answer.status_code for answer in await asyncio.gather(*deletes, *acks)]
    assert statuses[:4].count(200) == 1
    assert set(statuses) <= {200, 404}
    await api.refused("GET", _SHIP, status=404)


async def test_a_stream_that_a_webhook_fills_is_deleted_by_force_only(api: Api) -> None:
    """The sender would be refused from then on, so that is not what a client can mean that knows no webhooks."""
    await held(api, "a")
    await api.post("/sources", {"kind": "webhook", "name": "hook", "stream": "orders"}, 201)
    for query in ({}, {"force": "false"}):
        answer = await api.refused("DELETE", "/streams/orders", status=409, **query)
        assert answer["code"] == "in_use"
    assert (await api.get(_SHIP))["info"]["num_ack_pending"] == 1, "a refused delete ends no lease"
    assert (await api.call("DELETE", "/streams/orders", force="true"))["deleted"] is True


async def test_python_still_deletes_what_is_in_use_by_force_only(api: Api) -> None:
    await held(api, "a")
    admin = api.server.app.admin
    with pytest.raises(InUse, match="1 worker at work on 1 message"):
        await admin.delete_consumer("orders", "ship")
    with pytest.raises(InUse):
        await admin.delete_stream("orders")
    await admin.delete_consumer("orders", "ship", force=True)


_BAD_FORCE: list[Any] = ["maybe", "2", ""]


async def test_force_is_true_or_false(api: Api) -> None:
    await held(api, "a")
    for force in _BAD_FORCE:
        for path in (_SHIP, "/streams/orders", "/http-consumers/ship"):
            await api.refused("DELETE", path, status=422, force=force)
    assert (await api.get(_SHIP))["info"]["num_ack_pending"] == 1
