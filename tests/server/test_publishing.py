"""Publishing through the engine. Requests share a transaction, but each is atomic."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model.errors import InvalidData, InvalidInput, InvalidKey, UnknownStream
from headrace.model.messages.publish_options import PublishOptions
from headrace.server.data_plane.publish_batching import SHARED_CHARACTERS, Incoming
from headrace.server.data_plane.publish_bodies import read_messages
from headrace.server.engine import Engine

pytestmark = pytest.mark.asyncio


def incoming(*keys: str, data: str = "1") -> Incoming:
    messages = Incoming()
    for key in keys:
        messages.add(key, data)
    return messages


async def stored(engine: Engine) -> list[str]:
    """Return the keys in the stream, without those of the publishes that were held up."""
    rows = await engine.app.database.fetch("select key from headrace_streams.orders where key <> 'first' order by seq")
    return [row[0] for row in rows]


class Held:
    """Holds up the first publishes, so that later ones go together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[str]] = []
        self.go = asyncio.Event()
        self._called = asyncio.Event()
        for name in ("publish_many", "publish_all"):
            monkeypatch.setattr(store, name, self._held(getattr(store, name)))

    async def until(self, count: int) -> None:
        """Wait until `count` publishes have been held up."""
        while len(self.calls) < count:
            self._called.clear()
            await self._called.wait()

    def _held(self, real: Any) -> Any:
        async def publish(database: Any, stream: str, keys: list[str], *rest: Any, **options: Any) -> int:
            self.calls.append(keys)
            self._called.set()
            await self.go.wait()
            return int(await real(database, stream, keys, *rest, **options))

        return publish


async def together(engine: Engine, held: Held, *requests: Incoming) -> list[Any]:
    orders = await engine.stream("orders")
    tasks = [asyncio.create_task(engine.publish(orders, incoming("first")))]
    await held.until(1)
    tasks += [asyncio.create_task(engine.publish(orders, one)) for one in requests]
    await asyncio.sleep(0)
    held.go.set()
    return (await asyncio.gather(*tasks, return_exceptions=True))[1:]


async def test_requests_that_arrive_together_are_committed_together_each_in_its_order(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    assert await together(engine, held, incoming("a", "b"), incoming("c"), incoming("d", "e")) == [2, 1, 2]
    assert held.calls[1:] == [["a", "b", "c", "d", "e"]]
    assert await stored(engine) == ["a", "b", "c", "d", "e"]


async def test_a_second_transaction_begins_for_what_the_next_one_cannot_take(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    orders = await engine.stream("orders")
    tasks = [asyncio.create_task(engine.publish(orders, incoming("first")))]
    await held.until(1)
    tasks += [asyncio.create_task(engine.publish(orders, incoming(*["a"] * 600))) for _ in range(2)]
    await held.until(2)
    assert len(held.calls[1]) == 600
    held.go.set()
    assert await asyncio.gather(*tasks) == [1, 600, 600]


async def test_large_requests_share_no_transaction_and_two_are_under_way_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    orders = await engine.stream("orders")
    large = '"' + "x" * (SHARED_CHARACTERS // 2) + '"'
    tasks = [asyncio.create_task(engine.publish(orders, incoming(key, data=large))) for key in ("first", "a", "b")]
    await held.until(2)
    held.go.set()
    assert await asyncio.gather(*tasks) == [1, 1, 1]
    assert held.calls == [["first"], ["a"], ["b"]]


async def test_a_request_with_a_message_id_waits_for_no_other(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    orders = await engine.stream("orders")
    careful = Incoming()
    careful.add("a", "1", options=PublishOptions(message_id="x"))
    tasks = [asyncio.create_task(engine.publish(orders, one)) for one in (incoming("first"), careful)]
    await held.until(2)
    held.go.set()
    assert await asyncio.gather(*tasks) == [1, 1]


async def test_one_request_that_cannot_be_spoils_no_other(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    requests = incoming("a"), incoming("b", "no..key"), incoming("c", data="{"), incoming("d")
    answers = await together(engine, held, *requests)
    assert (answers[0], type(answers[1]), type(answers[2]), answers[3]) == (1, InvalidKey, InvalidData, 1)
    assert "'no..key'" in str(answers[1])
    assert sorted(await stored(engine)) == ["a", "d"]


async def test_ids_and_times_go_by_themselves_and_are_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    careful = Incoming()
    careful.add("a", "1", options=PublishOptions(message_id="x"))
    careful.add("b", "2", options=PublishOptions(message_id="x"))
    careful.add("c", "3", options=PublishOptions(deliver_at=datetime.now(UTC) + timedelta(hours=1)))
    assert await together(engine, held, incoming("p"), careful, incoming("q")) == [1, 2, 1]
    assert sorted(await stored(engine)) == ["a", "p", "q"]
    assert (await engine.app.admin.stream("orders")).scheduled == 1


async def test_more_than_a_statement_carries_is_all_or_nothing(engine: Engine) -> None:
    orders = await engine.stream("orders")
    keys = [f"k{place}" for place in range(2500)]
    with pytest.raises(InvalidKey):
        await engine.publish(orders, incoming(*keys, "no..key"))
    assert await stored(engine) == []
    assert await engine.publish(orders, incoming(*keys)) == 2500
    assert await stored(engine) == keys


async def test_invalid_messages_are_refused(engine: Engine) -> None:
    orders = await engine.stream("orders")
    for count in (0, 10_001):
        with pytest.raises(InvalidInput, match="Send 1 to 10,000"):
            read_messages(b'{"messages":[%b]}' % b",".join([b'{"key":"a","data":1}'] * count))
    await engine.app.admin.delete_stream("orders", force=True)
    with pytest.raises(UnknownStream):
        await engine.publish(orders, incoming("a"))
    with pytest.raises(UnknownStream):
        await engine.stream("orders")


async def test_an_error_of_the_store_is_of_one_request_alone(engine: Engine) -> None:
    """The server writes the field of a request into it."""
    errors = []
    for _ in range(2):
        with pytest.raises(InvalidInput) as refused:
            await store.publish_all(
                engine.app.database,
                "orders",
                ["k"],
                ["1"],
                [None],
                options=PublishOptions.of_many(len(["1"]), message_ids=["m" * 300]),
            )
        errors.append(refused.value)
        refused.value.field = "messages[1].message_id"
    assert errors[0] is not errors[1]
