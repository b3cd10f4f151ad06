"""The contract's rows about receiving, settling, and the state of a consumer."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

_SHIP = "/streams/orders/consumers/ship"


async def _begin(api: Api, *keys: str, **settings: Any) -> None:
    await api.stream()
    await api.consumer(**settings)
    await api.publish(*((key, number) for number, key in enumerate(keys, 1)))


async def test_messages_are_received_by_get_and_by_post(api: Api) -> None:
    await _begin(api, "a", "b", "c", "d", "e")
    (first,) = (await api.get(f"{_SHIP}/receive"))["data"]
    assert set(first) == {"ack_id", "message"}
    assert set(first["message"]) == {
        "key", "data", "seq", "stream_id", "headers", "inserted_at", "updated_at", "attempt",
    }  # fmt: skip
    assert (first["message"]["key"], first["message"]["attempt"]) == ("a", 1)
    assert [one["message"]["seq"] for one in (await api.get(f"{_SHIP}/receive", batch_size=2))["data"]] == [2, 3]
    assert [one["message"]["seq"] for one in (await api.post(f"{_SHIP}/receive"))["data"]] == [4]
    assert [one["message"]["seq"] for one in (await api.post(f"{_SHIP}/messages", {"batch_size": 10}))["data"]] == [5]
    assert await api.get(f"{_SHIP}/receive", wait_for="1ms") == {"data": []}


async def test_an_invalid_receive_request_is_422(api: Api) -> None:
    await _begin(api)
    for field, value in (("batch_size", 0), ("batch_size", 1001), ("wait_for", "soon"), ("wait_for", "-1s")):
        query: dict[str, Any] = {field: value}
        for answer in (
            await api.refused("GET", f"{_SHIP}/receive", status=422, **query),
            await api.refused("POST", f"{_SHIP}/receive", query, status=422),
        ):
            assert list(answer["validation_errors"]) == [field]


async def test_wait_for_is_milliseconds_or_text(api: Api) -> None:
    await _begin(api)
    for wait_for in (5, "5", "5ms", "0.005s", 0):
        assert await api.post(f"{_SHIP}/receive", {"wait_for": wait_for}) == {"data": []}
        assert await api.get(f"{_SHIP}/receive", wait_for=wait_for) == {"data": []}


async def test_messages_are_acked(api: Api) -> None:
    await _begin(api, "a", "b")
    first, second = await api.receive()
    assert await api.post(f"{_SHIP}/ack", {"ack_ids": [first["ack_id"]]}) == {"success": True}
    assert await api.post(f"{_SHIP}/ack", {"ack_tokens": [second["ack_id"]]}) == {"success": True}
    info = (await api.get(_SHIP))["info"]
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)


async def test_a_snooze_counts_no_attempt_and_needs_a_delay(api: Api) -> None:
    await _begin(api, "a")
    for _ in range(2):
        (first,) = await api.receive()
        assert first["message"]["attempt"] == 1
        wrong = {"ack_ids": [first["ack_id"]], "snooze": True}
        assert (await api.client.post(f"{api.prefix}{_SHIP}/nack", json=wrong)).status_code == 422
        assert await api.post(f"{_SHIP}/nack", {**wrong, "delay_ms": 0}) == {"success": True}


async def test_nacked_messages_come_again_at_once_or_after_the_delay(api: Api) -> None:
    await _begin(api, "a", "b")
    first, second = await api.receive()
    assert await api.post(f"{_SHIP}/nack", {"ack_ids": [first["ack_id"]]}) == {"success": True}
    later = {"ack_ids": [second["ack_id"]], "delay_ms": 3_600_000, "error": "closed"}
    assert await api.post(f"{_SHIP}/nack", later) == {"success": True}
    assert [(one["message"]["key"], one["message"]["attempt"]) for one in await api.receive()] == [("a", 2)]


async def test_a_stale_ack_is_harmless_and_reported_in_strict_mode(api: Api) -> None:
    await _begin(api, "a", "b")
    first, second = await api.receive()
    await api.post(f"{_SHIP}/ack", {"ack_ids": [first["ack_id"]]})
    assert await api.post(f"{_SHIP}/ack", {"ack_ids": [first["ack_id"]]}) == {"success": True}
    for verb in ("ack", "nack"):
        answer = await api.refused(
            "POST", f"{_SHIP}/{verb}", {"ack_ids": [first["ack_id"]], "strict": True}, status=409
        )
        assert (answer["code"], answer["stale"]) == ("lease_lost", [first["ack_id"]])
    both = [first["ack_id"], second["ack_id"]]
    assert (await api.refused("POST", f"{_SHIP}/ack", {"ack_ids": both, "strict": True}, status=409))["stale"] == both[
        :1
    ]
    answer = await api.refused("POST", f"{_SHIP}/extend", {"ack_ids": both, "strict": True}, status=409)
    assert sorted(answer["stale"]) == sorted(both)
    assert await api.post(f"{_SHIP}/extend", {"ack_ids": both}) == {"success": True}


async def test_an_empty_list_of_ack_ids_does_nothing(api: Api) -> None:
    await _begin(api, "a")
    await api.receive()
    for path in (_SHIP, "/http_pull_consumers/ship", "/http-consumers/ship", "/consumers/ship"):
        for verb in ("ack", "nack", "extend") if path == _SHIP else ("ack", "nack"):
            for name in ("ack_ids", "ack_tokens"):
                for strict in (False, True):
                    assert await api.post(f"{path}/{verb}", {name: [], "strict": strict}) == {"success": True}
    assert (await api.get(_SHIP))["info"]["num_ack_pending"] == 1
    await api.refused("POST", "/streams/orders/consumers/none/ack", {"ack_ids": []}, status=404)


async def test_an_invalid_ack_id_is_422(api: Api) -> None:
    await _begin(api, "a")
    (received,) = await api.receive()
    altered = ("B" if received["ack_id"][8] == "A" else "A").join((received["ack_id"][:8], received["ack_id"][9:]))
    for ids in (["nonsense"], [altered], [""]):
        for verb in ("ack", "nack", "extend"):
            await api.refused("POST", f"{_SHIP}/{verb}", {"ack_ids": ids}, status=422)
    for verb in ("ack", "nack", "extend"):
        for body in ({}, {"strict": True}, {"ack_ids": None}):
            answer = await api.refused("POST", f"{_SHIP}/{verb}", body, status=422)
            assert list(answer["validation_errors"]) == ["ack_ids"]
    assert (await api.get(_SHIP))["info"]["num_ack_pending"] == 1


async def test_more_receivers_than_max_waiting_are_429(api: Api) -> None:
    await _begin(api, max_waiting=1)
    async with anyio.create_task_group() as group:
        received: list[Any] = []

        async def wait() -> None:
            received.extend((await api.get(f"{_SHIP}/receive", wait_for="30s"))["data"])

        group.start_soon(wait)
        with anyio.fail_after(10):
            while not api.server.engine.statistics()["waiting"]:
                await anyio.lowlevel.checkpoint()
        answer = await api.refused("GET", f"{_SHIP}/receive", status=429, wait_for="30s")
        assert answer["code"] == "max_waiting"
        await api.publish(("a", 1))
    assert [one["message"]["key"] for one in received] == ["a"]


async def test_peek_reports_the_state_of_messages_and_changes_nothing(api: Api) -> None:
    await _begin(api, "a", "b", "c", "d")
    first, second = (await api.post(f"{_SHIP}/receive", {"batch_size": 2}))["data"]
    nack = {"ack_ids": [second["ack_id"]], "delay_ms": 3_600_000, "error": "no stock"}
    await api.post(f"{_SHIP}/nack", nack)

    async def peeked(**query: Any) -> list[tuple[str, str]]:
        found = (await api.get(f"{_SHIP}/messages", **query))["data"]
        return [(one["message"]["key"], one["info"]["state"]) for one in found]

    everything = [("a", "in_flight"), ("b", "parked"), ("c", "next"), ("d", "next")]
    assert await peeked() == everything
    assert await peeked() == everything
    assert await peeked(sort="seq_desc") == everything[::-1]
    assert await peeked(limit=3) == everything[:3]
    assert await peeked(visible="true") == everything[2:]
    assert await peeked(visible="false") == everything[:2]
    in_flight, parked, coming, _ = (await api.get(f"{_SHIP}/messages"))["data"]
    assert set(in_flight["info"]) >= {"ack_id", "deliver_count", "state", "not_visible_until"}
    assert (in_flight["info"]["deliver_count"], parked["info"]["deliver_count"]) == (1, 1)
    assert in_flight["info"]["not_visible_until"] is not None
    assert parked["info"]["not_visible_until"] is not None
    assert (parked["info"]["error"], parked["info"]["error_type"], parked["info"]["failed_by"]) == (
        "no stock",
        None,
        None,
    )
    assert parked["info"]["failed_at"] is not None
    assert (in_flight["info"]["error"], in_flight["info"]["failed_at"]) == (None, None)
    assert (coming["info"]["ack_id"], coming["info"]["not_visible_until"]) == (None, None)
    assert await api.post(f"{_SHIP}/ack", {"ack_ids": [in_flight["info"]["ack_id"]], "strict": True}) == {
        "success": True
    }
    assert (await api.refused("POST", f"{_SHIP}/ack", {"ack_ids": [first["ack_id"]], "strict": True}, status=409))[
        "stale"
    ]


async def test_a_consumer_is_moved(api: Api) -> None:
    await _begin(api, "a", "b", "c")
    await api.receive()
    for to, position in (("start", 0), (2, 1), ("3", 2), ("end", 3)):
        assert await api.post(f"{_SHIP}/seek", {"to": to}) == {"data": {"position": position}}
    at = (await api.get("/streams/orders/messages", limit=1))["data"][0]["inserted_at"]
    assert await api.post(f"{_SHIP}/seek", {"to": at}) == {"data": {"position": 0}}
    for to in (9, 0, "yesterday", "2999-01-01T00:00:00Z", None):
        await api.refused("POST", f"{_SHIP}/seek", {"to": to}, status=422)
    await api.refused("POST", f"{_SHIP}/seek", {}, status=422)
    assert [one["message"]["key"] for one in await api.receive()] == ["a", "b", "c"]


async def test_a_paused_consumer_gives_nothing_until_it_is_resumed(api: Api) -> None:
    await _begin(api, "a")
    assert (await api.post(f"{_SHIP}/pause"))["status"] == "paused"
    assert await api.receive() == []
    assert (await api.get(_SHIP))["status"] == "paused"
    assert (await api.post(f"{_SHIP}/resume"))["status"] == "active"
    assert len(await api.receive()) == 1
    answer = await api.post(f"{_SHIP}/pause", {"until": "2999-01-01T00:00:00Z"})
    assert answer["paused_until"] == "2999-01-01T00:00:00Z"
    await api.refused("POST", f"{_SHIP}/pause", {"until": "2020-01-01T00:00:00Z"}, status=422)


async def test_messages_are_replayed(api: Api) -> None:
    await _begin(api, "a", "b")
    await api.post(f"{_SHIP}/ack", {"ack_ids": [one["ack_id"] for one in await api.receive()]})
    assert await api.post(f"{_SHIP}/replay", {"filter": "b", "dry_run": True}) == {"data": {"replayed": 1}}
    assert await api.receive() == []
    assert await api.post(f"{_SHIP}/replay") == {"data": {"replayed": 2}}
    assert [one["message"]["key"] for one in await api.receive()] == ["a", "b"]


async def _kill(api: Api, *keys: str, **settings: Any) -> None:
    """Make dead letters of these keys."""
    await _begin(api, *keys, max_deliver=1, **settings)
    received = await api.receive()
    await api.post(f"{_SHIP}/nack", {"ack_ids": [one["ack_id"] for one in received], "error": "broken"})


async def test_dead_letters_are_listed_and_seen(api: Api) -> None:
    await _kill(api, "a", "b", "c")
    found = (await api.get(f"{_SHIP}/dead_letters"))["data"]
    assert [(one["seq"], one["key"], one["data"], one["reason"], one["error"]) for one in found] == [
        (1, "a", 1, "exhausted", "broken"),
        (2, "b", 2, "exhausted", "broken"),
        (3, "c", 3, "exhausted", "broken"),
    ]
    assert [one["seq"] for one in (await api.get(f"{_SHIP}/dead_letters", above=1, limit=1))["data"]] == [2]
    assert [one["seq"] for one in (await api.get(f"{_SHIP}/dead_letters", filter="c"))["data"]] == [3]
    assert [one["seq"] for one in (await api.get(f"{_SHIP}/dead_letters", where="seq < 2"))["data"]] == [1]
    assert (await api.get(f"{_SHIP}/dead_letters/2"))["key"] == "b"
    await api.refused("GET", f"{_SHIP}/dead_letters/7", status=404)
    await api.refused("GET", f"{_SHIP}/dead_letters/x", status=404)


async def test_dead_letters_are_redriven_and_purged(api: Api) -> None:
    await _kill(api, "a", "b", "c", "d")
    redrive, purge = f"{_SHIP}/dead_letters/redrive", f"{_SHIP}/dead_letters/purge"
    assert await api.post(redrive, {"dry_run": True}) == {"data": {"redriven": 4}}
    assert await api.post(redrive, {"key": "a"}) == {"data": {"redriven": 1}}
    assert await api.post(purge, {"seqs": [2]}) == {"data": {"purged": 1}}
    assert [(one["message"]["key"], one["message"]["attempt"]) for one in await api.receive()] == [("a", 1)]
    assert await api.post(redrive, {"filter": "d", "where": "seq = 4"}) == {"data": {"redriven": 1}}
    assert await api.post(purge) == {"data": {"purged": 1}}
    assert (await api.get(f"{_SHIP}/dead_letters"))["data"] == []


async def test_blocked_keys_are_listed_until_they_are_redriven(api: Api) -> None:
    await _kill(api, "a", on_exhausted="block")
    await api.publish(("a", 2), ("b", 3))
    assert [one["message"]["key"] for one in await api.receive()] == ["b"]
    (blocked,) = (await api.get(f"{_SHIP}/blocked_keys"))["data"]
    assert (blocked["key"], blocked["seq"], blocked["waiting"], blocked["error"]) == ("a", 1, 1, "broken")
    assert await api.post(f"{_SHIP}/dead_letters/redrive", {"key": "a"}) == {"data": {"redriven": 1}}
    assert (await api.get(f"{_SHIP}/blocked_keys"))["data"] == []


async def test_the_live_snapshot_lists_streams_consumers_and_processes(api: Api) -> None:
    await _begin(api, "a")
    data = (await api.get("/live/snapshot"))["data"]
    assert [one["name"] for one in data["streams"]] == ["orders"]
    assert [one["name"] for one in data["consumers"]] == ["ship"]
    assert isinstance(data["processes"], list)


async def test_a_consumer_with_a_slash_in_its_name_can_be_received_from(api: Api) -> None:
    await api.stream()
    await api.consumer("a/b")
    await api.publish(*((f"k.{number}", number) for number in range(1, 7)))
    path = "/streams/orders/consumers/a%2Fb"
    (first,) = (await api.get(f"{path}/receive"))["data"]
    (second,) = (await api.post(f"{path}/receive", {"wait_for": "1s"}))["data"]
    (third,) = (await api.post(f"{path}/messages"))["data"]
    (fourth,) = (await api.get("/http_pull_consumers/a%2Fb/receive"))["data"]
    (fifth,) = (await api.get("/http-consumers/orders:a%2fb/next"))["data"]
    assert await api.post(f"{path}/ack", {"ack_ids": [first["ack_id"]], "strict": True}) == {"success": True}
    assert await api.post(f"{path}/extend", {"ack_ids": [second["ack_id"]], "strict": True}) == {"success": True}
    assert await api.post(f"{path}/nack", {"ack_ids": [third["ack_id"]], "strict": True}) == {"success": True}
    pulled = {"ack_tokens": [fourth["ack_token"]], "strict": True}
    assert await api.post("/http_pull_consumers/a%2Fb/ack", pulled) == {"success": True}
    given = {"ack_tokens": [fifth["ack_token"]], "strict": True}
    assert await api.post("/http-consumers/a%2Fb/nack", given) == {"success": True}
    assert (await api.refused("POST", f"{path}/ack", {"ack_ids": [first["ack_id"]], "strict": True}, status=409))[
        "stale"
    ]
    assert (await api.refused("POST", f"{path}/ack", {"ack_ids": ["nonsense"]}, status=422))["code"]


async def test_a_slash_at_the_end_of_a_path_does_no_harm(api: Api) -> None:
    await _begin(api, "a")
    assert await api.post("/streams/orders/messages/", {"key": "b", "data": 1}) == {"data": {"published": 1}}
    assert len((await api.get(f"{_SHIP}/receive/", batch_size=5))["data"]) == 2
