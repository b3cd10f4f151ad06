"""Lists are bounded by their decoded size, and paged in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.calling import Api

MB = 1_000_000


async def pages(api: Api, path: str, *, back: bool = False, **query: Any) -> list[list[Any]]:
    """Read all pages of a list, forwards from its start or backwards from `before`."""
    found, place = [], {}
    while True:
        answer = await api.get(path, **query, **place)
        found.append(answer["data"])
        link = answer.get("prev" if back else "next")
        if link is None:
            return found
        place = {"before" if back else "after": link}
        query.pop("before", None)


async def messages(api: Api, count: int = 7) -> None:
    await api.stream()
    await api.publish(*((f"k{i}", i) for i in range(1, count + 1)))


def seqs(found: list[list[Any]]) -> list[list[int]]:
    return [[one["seq"] for one in page] for page in found]


@pytest.mark.asyncio
async def test_an_answer_is_bounded_by_what_it_is_when_decoded(api: Api) -> None:
    await api.stream()
    for _ in range(3):  # each compresses to a few kB
        await api.publish(*((f"k{i}", "x" * MB) for i in range(9)))
    await api.consumer()
    answer = await api.answer("GET", "/streams/orders/messages", limit=10_000)
    assert len(answer.content) < 6 * MB
    found = seqs(await pages(api, "/streams/orders/messages", limit=10_000))
    assert found == [list(range(first, min(first + 4, 28))) for first in range(1, 28, 4)]
    path = "/streams/orders/consumers/ship/messages"
    peeked = await pages(api, path, limit=10_000)
    assert [len(one) for one in peeked] == [4, 4, 4, 4, 4, 4, 3]


@pytest.mark.asyncio
async def test_headers_count_in_lists_and_in_receive(api: Api) -> None:
    await api.stream()
    for _ in range(3):
        await api.post(
            "/streams/orders/messages",
            {"messages": [{"key": f"k{i}", "data": 1, "headers": {"a": "x" * MB}} for i in range(9)]},
        )
    await api.consumer()
    assert [len(one) for one in await pages(api, "/streams/orders/messages", limit=10_000)] == [4, 4, 4, 4, 4, 4, 3]
    assert len(await api.receive(batch_size=1000)) == 9, "one of each key"
    await api.consumer("loose", ordered=False)
    assert len(await api.receive("loose", batch_size=1000)) <= 17


@pytest.mark.asyncio
async def test_small_headers_that_are_compressed_in_their_rows_count_in_receive(api: Api) -> None:
    await api.stream()
    for _ in range(4):
        await api.post(
            "/streams/orders/messages",
            {"messages": [{"key": "k", "data": 1, "headers": {"a": "x" * 90_000}} for i in range(100)]},
        )
    await api.consumer(ordered=False)
    assert len(await api.receive(batch_size=1000)) <= 180


@pytest.mark.asyncio
async def test_messages_are_paged_in_both_directions(api: Api) -> None:
    await messages(api)
    path = "/streams/orders/messages"
    assert seqs(await pages(api, path, limit=3)) == [[1, 2, 3], [4, 5, 6], [7]]
    assert seqs(await pages(api, path, limit=3, before=7, back=True)) == [[4, 5, 6], [1, 2, 3], []]
    assert seqs(await pages(api, path, limit=3, sort="seq_desc")) == [[7, 6, 5], [4, 3, 2], [1]]
    assert seqs(await pages(api, path, limit=3, sort="seq_desc", before=1, back=True)) == [[4, 3, 2], [7, 6, 5], []]
    middle = await api.get(path, limit=2, after=3)
    assert (middle["next"], middle["prev"]) == (5, 4)
    assert set(await api.get(path, limit=10)) == {"data"}, "no links on the only page"
    await api.refused("GET", path, status=422, after=1, before=3)


@pytest.mark.asyncio
async def test_peeked_messages_are_paged(api: Api) -> None:
    await messages(api)
    await api.consumer()
    await api.receive(batch_size=2)
    path = "/streams/orders/consumers/ship/messages"
    found = await pages(api, path, limit=2)
    assert [[one["message"]["seq"] for one in page] for page in found if page] == [[1, 2], [3, 4], [5, 6], [7]]
    hidden = await pages(api, path, limit=2, visible=False)
    assert [one["message"]["seq"] for page in hidden for one in page] == [1, 2]


@pytest.mark.asyncio
async def test_dead_letters_and_blocked_keys_are_paged_in_both_directions(api: Api) -> None:
    await messages(api, 5)
    await api.consumer(max_deliver=1, on_exhausted="block")
    ids = [one["ack_id"] for one in await api.receive()]
    await api.post("/streams/orders/consumers/ship/nack", {"ack_ids": ids})
    for what in ("dead_letters", "blocked_keys"):
        path = f"/streams/orders/consumers/ship/{what}"
        assert seqs(await pages(api, path, limit=2)) == [[1, 2], [3, 4], [5]]
        assert seqs(await pages(api, path, limit=2, before=5, back=True)) == [[3, 4], [1, 2], []]


@pytest.mark.asyncio
async def test_lists_by_name_are_paged_in_both_directions(api: Api) -> None:
    for name in ("a", "a-b", "c"):
        await api.stream(name)
        await api.consumer("x", name)
    streams = await pages(api, "/streams", limit=2)
    assert [[one["name"] for one in page] for page in streams] == [["a", "a-b"], ["c"]]
    back = await pages(api, "/streams", limit=1, before="c", back=True)
    assert [one["name"] for page in back for one in page] == ["a-b", "a"]
    consumers = await pages(api, "/consumers", limit=1)
    assert [one["stream_id"] for page in consumers for one in page] == [one["id"] for page in streams for one in page]


@pytest.mark.asyncio
async def test_tokens_are_paged_in_both_directions(api: Api) -> None:
    admin = api.server.app.admin
    tokens = [await admin.create_token(name, ["admin"]) for name in ("one", "three", "two")]
    api.client.headers["authorization"] = f"Bearer {tokens[0].token}"
    assert [[one["name"] for one in page] for page in await pages(api, "/tokens", limit=2)] == [
        ["one", "three"],
        ["two"],
    ]
    back = await pages(api, "/tokens", limit=1, before="two", back=True)
    assert [one["name"] for page in back for one in page] == ["three", "one"]
