"""A receive request settles earlier messages before it leases others, as ack and nack requests do."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from headrace.server.data_plane.bounds import MAX_SETTLED
from tests.server.calling import Api
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

_SHIP = "/streams/orders/consumers/ship"
_DIALECTS = (f"{_SHIP}/receive", f"{_SHIP}/messages", "/http_pull_consumers/ship/receive", "/consumers/ship/receive")


async def _begin(api: Api, *keys: str, **settings: Any) -> None:
    await api.stream()
    await api.consumer(**settings)
    await api.publish(*((key, number) for number, key in enumerate(keys, 1)))


async def _ids(api: Api, **body: Any) -> list[str]:
    return [one["ack_id"] for one in await api.receive(**body)]


async def _unsettled(api: Api) -> tuple[int, int]:
    info = (await api.get(_SHIP))["info"]
    return info["num_ack_pending"], info["num_pending"]


@pytest.mark.parametrize("path", _DIALECTS)
async def test_a_receive_acks_the_messages_of_the_one_before(api: Api, path: str) -> None:
    await _begin(api, "a", "b", "c")
    ids = await _ids(api, batch_size=2)
    answer = await api.post(path, {"batch_size": 10, "ack_ids": ids})
    assert (len(answer["data"]), answer["stale"]) == (1, [])
    assert await _unsettled(api) == (1, 0)
    assert await api.post(path, {"ack_ids": [answer["data"][0]["ack_id"]]}) == {"data": [], "stale": []}
    assert await _unsettled(api) == (0, 0)


async def test_a_receive_without_ids_says_nothing_of_stale_ones(api: Api) -> None:
    await _begin(api)
    for body in ({}, {"ack_ids": None, "nack_ids": None}):
        assert await api.post(f"{_SHIP}/receive", body) == {"data": []}
    assert await api.post(f"{_SHIP}/receive", {"nack_ids": []}) == {"data": [], "stale": []}


async def test_a_receive_leases_after_it_has_settled(api: Api) -> None:
    await _begin(api, "a", "a", "b", max_ack_pending=1)  # neither the key nor the capacity is free before
    (id_,) = await _ids(api)
    for field, seq, attempt in (("ack_ids", 2, 1), ("nack_ids", 2, 2), ("ack_ids", 3, 1)):
        (received,) = (await api.post(f"{_SHIP}/receive", {field: [id_]}))["data"]
        assert (received["message"]["seq"], received["message"]["attempt"]) == (seq, attempt)
        id_ = received["ack_id"]


async def test_a_receive_nacks_some_and_acks_the_others(api: Api) -> None:
    await _begin(api, "a", "b", "c")
    first, second, third = await _ids(api)
    answer = await api.post(f"{_SHIP}/receive", {"batch_size": 10, "ack_ids": [first, third], "nack_ids": [second]})
    assert [(one["message"]["key"], one["message"]["attempt"]) for one in answer["data"]] == [("b", 2)]
    assert answer["stale"] == []


async def test_nacked_messages_wait_for_the_backoff_of_the_consumer(api: Api) -> None:
    await _begin(api, "a", backoff_ms=[3_600_000])
    ids = await _ids(api)
    assert await api.post(f"{_SHIP}/receive", {"nack_ids": ids}) == {"data": [], "stale": []}
    assert [one["info"]["state"] for one in (await api.get(f"{_SHIP}/messages"))["data"]] == ["parked"]


async def test_lost_ids_are_reported_and_do_not_fail_the_receive(api: Api) -> None:
    await _begin(api, "a", "b", "c")
    first, second, third = await _ids(api)
    await api.post(f"{_SHIP}/ack", {"ack_ids": [first]})
    await api.post(f"{_SHIP}/nack", {"ack_ids": [second], "delay_ms": 3_600_000})
    await api.publish(("d", 4))
    answer = await api.post(f"{_SHIP}/receive", {"batch_size": 10, "ack_ids": [first, third], "nack_ids": [second]})
    assert [one["message"]["key"] for one in answer["data"]] == ["d"]
    assert sorted(answer["stale"]) == sorted([first, second])
    answer = await api.post(f"{_SHIP}/receive", {"ack_ids": [third], "nack_ids": [third]})
    assert answer == {"data": [], "stale": [third, third]}


async def test_an_id_that_is_acked_and_nacked_is_acked(api: Api) -> None:
    await _begin(api, "a")
    ids = await _ids(api)
    assert await api.post(f"{_SHIP}/receive", {"ack_ids": ids, "nack_ids": ids}) == {"data": [], "stale": ids}
    assert await _unsettled(api) == (0, 0)


async def test_with_an_invalid_id_nothing_is_settled_or_leased(api: Api) -> None:
    await _begin(api, "a", "b")
    (id_,) = await _ids(api, batch_size=1)
    for field in ("ack_ids", "nack_ids"):
        other = {"ack_ids": "nack_ids", "nack_ids": "ack_ids"}[field]
        for body in ({field: ["odd"]}, {field: ["odd"], other: [id_]}, {field: [id_, "odd"]}, {field: [1]}):
            answer = await api.refused("POST", f"{_SHIP}/receive", body, status=422)
            assert [name.partition("[")[0] for name in answer["validation_errors"]] == [field]
        assert await _unsettled(api) == (1, 1)


async def test_a_receive_settles_no_more_ids_than_an_ack(api: Api) -> None:
    await _begin(api, "a")
    for body in (
        {"ack_ids": ["a"] * (MAX_SETTLED + 1)},
        {"ack_ids": ["a"] * MAX_SETTLED, "nack_ids": ["a"]},
        {"ack_ids": ["a"] * (MAX_SETTLED + 1000)},
    ):
        answer = await api.refused("POST", f"{_SHIP}/receive", body, status=422)
        assert "Give at most 10,000." in answer["validation_errors"]["ack_ids"]
    assert await _unsettled(api) == (0, 1)


async def test_ids_are_not_taken_from_a_query_nor_by_head(api: Api) -> None:
    await _begin(api, "a")
    (id_,) = await _ids(api)
    await api.refused("GET", f"{_SHIP}/receive", status=422, ack_ids=id_)
    head = await api.client.request("HEAD", f"/v1{_SHIP}/receive", json={"ack_ids": [id_]})
    assert head.status_code == 200
    assert await _unsettled(api) == (1, 0)


async def test_a_long_poll_has_settled_before_it_waits(api: Api) -> None:
    await _begin(api, "a", "b")
    first, second = await _ids(api)
    answers: list[Any] = []

    async def wait() -> None:
        body = {"wait_for": "60s", "ack_ids": [first], "nack_ids": []}
        answers.append(await api.post(f"{_SHIP}/receive", body))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await until(lambda: api.server.engine.statistics()["waiting"] == 1)
        assert await _unsettled(api) == (1, 0)
        await api.publish(("c", 3))
    assert [one["message"]["key"] for one in answers[0]["data"]] == ["c"]
    assert await api.post(f"{_SHIP}/ack", {"ack_ids": [second], "strict": True}) == {"success": True}


async def test_what_is_settled_stays_settled_if_the_receive_fails(api: Api) -> None:
    await _begin(api, "a", max_waiting=1)
    (id_,) = await _ids(api)

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: api.get(f"{_SHIP}/receive", wait_for="60s"))
        await until(lambda: api.server.engine.statistics()["waiting"] == 1)
        answer = await api.refused("POST", f"{_SHIP}/receive", {"wait_for": "1s", "ack_ids": [id_]}, status=429)
        assert answer["code"] == "max_waiting"
        assert await _unsettled(api) == (0, 0)
        await api.publish(("b", 2))
    # It may be sent again as it is.
    assert await api.post(f"{_SHIP}/receive", {"ack_ids": [id_]}) == {"data": [], "stale": [id_]}


async def test_a_deleted_consumer_receives_nothing(api: Api) -> None:
    await _begin(api, "a")
    ids = await _ids(api)
    await api.call("DELETE", _SHIP, force="true")
    answer = await api.refused("POST", f"{_SHIP}/receive", {"ack_ids": ids}, status=404)
    assert answer["code"] == "unknown_consumer"


async def test_a_token_that_may_not_receive_settles_nothing(api: Api) -> None:
    await _begin(api, "a")
    ids = await _ids(api)
    tokens = {}
    for scope in ("admin", "publish:orders", "consume:orders"):
        headers = {"authorization": f"Bearer {tokens['admin']}"} if tokens else {}
        body = {"name": scope.replace(":", "-"), "scopes": [scope]}
        tokens[scope] = (await api.client.post("/v1/tokens", json=body, headers=headers)).json()["token"]
    for scope, status in (("publish:orders", 403), ("consume:orders", 200)):
        headers = {"authorization": f"Bearer {tokens[scope]}"}
        answer = await api.client.post(f"/v1{_SHIP}/receive", json={"ack_ids": ids}, headers=headers)
        assert answer.status_code == status
    assert answer.json() == {"data": [], "stale": []}  # the refused request has left its message to this one
