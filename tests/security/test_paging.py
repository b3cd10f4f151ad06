"""Lists are bounded by their decoded size, and paged in both directions."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from headrace import store
from headrace.client import Remote
from headrace.client.errors import error_of
from headrace.client.request import Request, Response
from headrace.model.errors import InvalidInput
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
    assert seqs(await pages(api, path, limit=3, before=7, back=True)) == [[4, 5, 6], [1, 2, 3]]
    assert seqs(await pages(api, path, limit=3, sort="seq_desc")) == [[7, 6, 5], [4, 3, 2], [1]]
    assert seqs(await pages(api, path, limit=3, sort="seq_desc", before=1, back=True)) == [[4, 3, 2], [7, 6, 5]]
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


class Capture(NamedTuple):
    id: str
    number: int
    epoch: int


async def source(api: Api, name: str = "shop") -> Capture:
    """Create a source that captures a table, and take its capture lease."""
    database = api.server.app.database
    await store.create_stream(database, "rows")
    async with database.transaction() as connection:  # the server sees the source only once it is taken
        await store.create_source(connection, name, "postgres", "rows", {"tables": ["public.t"]})
        [todo] = await store.captures_to_do(connection)
        epoch = await store.take_capture(connection, todo.number, uuid4(), 3600)
    assert epoch is not None
    return Capture(todo.id, todo.number, epoch)


@pytest.mark.asyncio
async def test_backfills_are_paged_in_both_directions(api: Api) -> None:
    shop = await source(api)
    database = api.server.app.database
    started = [await store.start_backfill(database, shop.id, f"public.t{n}") for n in range(150)]
    newest = started[::-1]
    for path in ("/backfills", "/sources/shop/backfills"):
        assert len((await api.get(path))["data"]) == 100, "the default"
        found = await pages(api, path, limit=60)
        assert [len(page) for page in found] == [60, 60, len(newest) - 120]
        assert [one["id"] for page in found for one in page] == newest
        first = await api.get(path, limit=60)
        second = await api.get(path, limit=60, after=first["next"])
        back = await api.get(path, limit=60, before=second["prev"])
        assert [one["id"] for one in back["data"]] == newest[:60]
        # A backfill that is queued meanwhile moves no other one into another page.
        again = await store.start_backfill(database, shop.id, f"public.new.{path}")
        assert (await api.get(path, limit=60, after=first["next"]))["data"] == second["data"]
        earlier = await pages(api, path, limit=7, before=first["next"], back=True)
        assert [one["id"] for page in earlier[::-1] for one in page] == [again, *newest[:59]]
        newest.insert(0, again)
        for place in (
            "x",
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00Z_x",
            f"infinity_{again}",
            f"_{again}",
            "9" * 200,
        ):
            refused = await api.refused("GET", path, status=422, after=place)
            assert set(refused["validation_errors"]) == {"after"}
    await api.refused("GET", "/backfills", status=422, after=first["next"], before=first["next"])


@pytest.mark.asyncio
async def test_backfills_that_began_at_one_moment_are_all_listed(api: Api) -> None:
    shop = await source(api)
    database = api.server.app.database
    for n in range(10):
        await store.start_backfill(database, shop.id, f"public.t{n}")
    await database.fetch("update headrace_internal.backfills set created_at = '2026-01-01'")
    found = [one["id"] for page in await pages(api, "/backfills", limit=3) for one in page]
    assert len(set(found)) == len(found) == 10


@pytest.mark.asyncio
async def test_failed_changes_are_paged_in_both_directions_and_bounded(api: Api) -> None:
    shop = await source(api)
    database = api.server.app.database
    for _ in range(9):
        failures = [store.CaptureFailure(key="k", data=f'"{"x" * MB}"', error="no")]
        await store.append_captured(
            database, shop.number, shop.epoch, "rows", store.CaptureBatch(captured=1, failures=failures)
        )
    path = "/sources/shop/failures"
    found = await pages(api, path, limit=10_000)
    assert [len(page) for page in found] == [4, 4, 1]
    ids = [one["id"] for page in found for one in page]
    back = await pages(api, path, limit=10_000, before=ids[-1], back=True)
    assert [[one["id"] for one in page] for page in back] == [ids[4:8], ids[:4]] or back[-1] == []
    assert [one["id"] for page in back[::-1] for one in page] == ids[:8]
    few = await pages(api, path, limit=2, above=ids[2])
    assert [one["id"] for page in few for one in page] == ids[3:]
    async with Remote("http://test", transport=Through(api)) as remote:
        assert [one.id for one in await remote.failures("shop", limit=8)] == ids[:8]


@pytest.mark.asyncio
async def test_errors_of_blocked_keys_and_settings_of_consumers_and_sources_count(api: Api) -> None:
    await messages(api, 9)
    await api.consumer(max_deliver=1, on_exhausted="block")
    ids = [one["ack_id"] for one in await api.receive()]
    await api.post("/streams/orders/consumers/ship/nack", {"ack_ids": ids})
    database = api.server.app.database
    await database.fetch("update headrace_internal.dead_letters set error = repeat('x', 1000000)")
    found = await pages(api, "/streams/orders/consumers/ship/blocked_keys", limit=10_000)
    assert seqs(found) == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert seqs(await pages(api, "/streams/orders/consumers/ship/blocked_keys", limit=10_000, before=9, back=True)) == [
        [5, 6, 7, 8], [1, 2, 3, 4], []
    ]  # fmt: skip
    await api.stream("other")
    for n in range(9):
        await api.consumer(f"c{n}", "other")
    await database.fetch(
        "update headrace_internal.consumers set filters = array[repeat('x', 1000000)] where name like 'c%'"
    )
    for path in ("/streams/other/consumers", "/consumers", "/http-consumers"):
        found = await pages(api, path)
        assert [len(page) for page in found] == ([4, 4, 1] if "streams" in path else [5, 4, 1]), path
        names = [one["name"] for page in found for one in page]
        assert names[-9:] == [f"c{n}" for n in range(9)]
        back = await pages(api, path, before="z:z", back=True)
        assert [one["name"] for page in back[::-1] for one in page] == names
    for n in range(5):
        await store.create_source(database, f"s{n}", "webhook", "orders", {"secrets": [], "key": "x" * MB})
    assert [len(page) for page in await pages(api, "/sources")] == [4, 1]


@pytest.mark.asyncio
async def test_scopes_of_tokens_count(api: Api) -> None:
    admin = api.server.app.admin
    token = await admin.create_token("a", ["admin"])
    api.client.headers["authorization"] = f"Bearer {token.token}"
    await api.server.app.database.fetch(
        """insert into headrace_internal.tokens (id, name, digest, scopes)
           select gen_random_uuid()::text, 'many' || n, digest, array_fill(repeat('x', 100), array[10000])
           from headrace_internal.tokens, generate_series(1, 9) as n"""
    )
    assert [len(page) for page in await pages(api, "/tokens")] == [5, 4, 1]


@pytest.mark.asyncio
async def test_peeked_messages_are_paged_backwards(api: Api) -> None:
    await messages(api)
    await api.consumer()
    await api.receive(batch_size=2)
    path = "/streams/orders/consumers/ship/messages"

    async def read(**query: Any) -> list[list[int]]:
        found = await pages(api, path, **query)
        return [[one["message"]["seq"] for one in page] for page in found if page]

    assert await read(limit=2, sort="seq_desc") == [[7, 6], [5, 4], [3, 2], [1]]
    assert await read(limit=2, before=6, back=True) == [[4, 5], [2, 3], [1]]
    assert await read(limit=2, sort="seq_desc", before=2, back=True) == [[4, 3], [6, 5], [7]]
    assert await read(limit=2, states=["in_flight"]) == [[1, 2]]
    assert await read(limit=2, states=["in_flight"], sort="seq_desc", visible=False) == [[2, 1]]
    middle = await api.get(path, limit=2, after=2)
    assert (middle["next"], middle["prev"]) == (4, 3)
    await api.refused("GET", path, status=422, after=1, before=3)
    await api.refused("GET", path, status=422, states=["acked"])


@pytest.mark.asyncio
async def test_large_messages_are_peeked_backwards_in_pages(api: Api) -> None:
    await api.stream()
    for first in (0, 5):
        await api.publish(*((f"k{i}", "x" * MB) for i in range(first, first + 5)))
    await api.consumer()
    await api.receive(batch_size=3)
    path = "/streams/orders/consumers/ship/messages"
    found = await pages(api, path, sort="seq_desc")
    assert [[one["message"]["seq"] for one in page] for page in found] == [[10, 9, 8, 7], [6, 5, 4, 3], [2, 1]]
    async with Remote("http://test", transport=Through(api)) as remote:
        for side in (remote, api.server.app.admin):
            peeked = await side.peek("orders", "ship", limit=6)
            assert [(one.state, one.seq) for one in peeked] == [
                *(("in_flight", seq) for seq in (1, 2, 3)), *(("next", seq) for seq in (4, 5, 6, 7, 8, 9))
            ]  # fmt: skip
            assert [one.seq for one in await side.peek("orders", "ship", limit=2, above=2)] == [3, 4, 5]


@pytest.mark.asyncio
async def test_clients_follow_pages_up_to_their_limit(api: Api) -> None:
    await api.stream()
    for first in (0, 5):
        await api.publish(*((f"k{i}", "x" * MB) for i in range(first, first + 5)))
    await api.consumer(max_deliver=1, on_exhausted="block")
    await api.post("/streams/orders/consumers/ship/nack", {"ack_ids": [one["ack_id"] for one in await api.receive()]})
    async with Remote("http://test", transport=Through(api)) as remote:
        for side in (remote, api.server.app.admin):
            assert [one.seq for one in await side.messages("orders", limit=9)] == list(range(1, 10))
            assert [one.seq for one in await side.messages("orders", limit=9, newest=True)] == list(range(2, 11))
            assert [one.seq for one in await side.messages("orders", start_seq=3)] == list(range(3, 11))
            assert [one.seq for one in await side.dead_letters("orders", "ship", limit=9)] == list(range(1, 10))
            assert [one.seq for one in await side.dead_letters("orders", "ship", above=2)] == list(range(3, 11))
            assert [one.seq for one in await side.blocked_keys("orders", "ship", above=2, limit=3)] == [3, 4, 5]
            sizes = [len(page) async for page in side.messages.pages("orders", limit=9, newest=True)]
            assert sizes == [4, 4, 1], "no more than a page is in memory"
            for limit in (0, 10_001):
                with pytest.raises(InvalidInput):
                    await side.messages("orders", limit=limit)


class Through:
    """Sends the requests of a `Remote` to the server under test."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def send(self, request: Request) -> Response:
        answer = await self._api.client.request(request.method, request.target, content=request.content)
        if answer.status_code >= 400:
            raise error_of("http://test", answer.status_code, answer.reason_phrase, answer.content)
        return Response("http://test", answer.status_code, answer.reason_phrase, answer.content)

    def close(self) -> None:
        pass
