"""Consumers of one stream in one process read each message once, and get what they would have read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import anyio
import msgspec
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.model.outcomes import RELEASE, Settlement
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from headrace.runtime.formats.codec import Codec
from headrace.runtime.leasing import shared_reads
from headrace.runtime.leasing.lease_calls import LeaseCalls
from headrace.runtime.leasing.shared_reads import SharedReads
from tests.runtime.running import Seen, running

pytestmark = pytest.mark.asyncio


class Consumer:
    """A consumer that leases as a pipeline does.

    Attributes:
        left_out: the seqs that its last call left out.
    """

    def __init__(self, database: store.Database, reads: SharedReads, spec: ConsumerSpec, number: int) -> None:
        self.spec = spec
        self.number = number
        self.owner = uuid4()
        self.left_out: list[int] = []
        self.calls = LeaseCalls(database, number)
        self._lease, self.calls.lease = self.calls.lease, self._noted  # type: ignore[method-assign]
        self.reader = reads.reader(self.calls)
        self.reader.join("orders")

    async def lease(self, want: int = 10) -> Batch:
        batch = await self.reader.lease(self.owner, want, self.spec, now=None)
        assert None not in batch.keys
        return batch

    async def _noted(self, *arguments: Any, **known: Any) -> Batch:
        batch = await self._lease(*arguments, **known)
        self.left_out = [seq for seq, key in zip(batch.seqs, batch.keys, strict=True) if key is None]
        return batch


class Place:
    """A stream, and consumers of it in one process."""

    def __init__(self, database: store.Database) -> None:
        self.database = database
        self.reads = SharedReads()

    async def consumer(self, name: str, **settings: Any) -> Consumer:
        spec = ConsumerSpec(stream="orders", name=name, **settings)
        declared = await store.declare_consumer(self.database, spec)
        return Consumer(self.database, self.reads, spec, declared.id)

    async def consumers(self, *names: str, **settings: Any) -> list[Consumer]:
        """Consumers that have read two messages each, so that they know of each other."""
        found = [await self.consumer(name, **settings) for name in names]
        for _ in range(2):
            await self.publish(1)
            for one in found:
                await one.lease()
        return found

    async def publish(self, count: int) -> None:
        await store.publish_many(
            self.database, "orders", [f"k.{n}" for n in range(count)], [str(n) for n in range(count)]
        )


@pytest_asyncio.fixture
async def place(database: store.Database) -> Place:
    await store.create_stream(database, "orders")
    return Place(database)


async def test_what_one_has_read_the_others_leave_out_and_get(place: Place) -> None:
    first, second, third = await place.consumers("a", "b", "c")
    await place.publish(5)
    read = await first.lease()
    assert (read.seqs, first.left_out) == ([3, 4, 5, 6, 7], [])
    for other in (second, third):
        batch = await other.lease()
        assert other.left_out == [3, 4, 5, 6, 7]
        assert (batch.keys, batch.data, batch.headers, batch.created_at) == (
            read.keys,
            read.data,
            read.headers,
            read.created_at,
        )
    await place.publish(1)
    assert (await third.lease()).data == ["0"]
    assert third.left_out == []
    await first.lease()
    assert first.left_out == [8]


async def test_a_consumer_that_is_alone_or_reads_something_else_keeps_nothing(place: Place) -> None:
    alone = await place.consumer("alone")
    for _ in range(3):
        await place.publish(1)
        await alone.lease()
    assert alone.reader._stream is not None
    kept = alone.reader._stream.recent
    assert kept.size == 0
    filtered = await place.consumer("filtered", filters=("k.>",))
    for _ in range(3):
        await place.publish(1)
        await alone.lease()
        await filtered.lease()
    assert (kept.size, alone.left_out, filtered.left_out) == (0, [], [])


async def test_what_is_kept_is_dropped_when_one_is_left(place: Place) -> None:
    first, second = await place.consumers("a", "b")
    await place.publish(3)
    await first.lease()
    assert first.reader._stream is not None
    kept = first.reader._stream.recent
    assert kept.size > 0
    first.reader.leave()
    assert kept.size == 0
    await second.lease()
    assert second.left_out == []
    second.reader.leave()
    assert place.reads._streams == {}


async def test_in_another_history_everything_is_read_anew(place: Place) -> None:
    """After a failover, the same seqs may be other messages."""
    first, second = await place.consumers("a", "b")
    await place.publish(2)
    await first.lease()
    await place.database.fetch("delete from headrace_internal.history")
    await place.database.fetch("update headrace_streams.orders set data = '\"other\"' where seq > 2")
    assert (await second.lease()).data == ['"other"', '"other"']
    assert second.left_out == []
    await place.publish(1)
    await second.lease()
    await first.lease()
    assert first.left_out == []
    await place.publish(1)
    await second.lease()
    await first.lease()
    assert first.left_out == [6]


async def test_a_number_that_is_another_streams_by_now_is_noticed(place: Place) -> None:
    """A failover may give a consumer's number to a consumer of another stream."""
    first, second = await place.consumers("a", "b")
    await place.publish(1)
    await first.lease()
    await store.create_stream(place.database, "bills")
    await place.database.fetch("delete from headrace_internal.history")
    await place.database.fetch(
        "update headrace_internal.consumers set stream_id = (select id from headrace_internal.streams where name = 'bills')"
        " where id = $1", first.number,
    )  # fmt: skip
    await place.database.fetch(
        "update headrace_internal.cursors set position = 0, mark = null, settled = 0 where consumer_id = $1",
        first.number,
    )
    await store.publish_many(place.database, "bills", ["b"] * 4, ['"bill"'] * 4)
    await place.publish(1)
    assert set((await first.lease()).data) == {'"bill"'}
    assert '"bill"' not in (await second.lease()).data
    assert second.left_out == []


async def test_an_erased_message_is_not_delivered_though_it_is_kept(place: Place) -> None:
    first, second = await place.consumers("a", "b")
    await place.publish(3)
    await first.lease()
    await store.erase(place.database, "orders", [4])
    for seqs in ([3], [5]):  # a batch ends before a seq that is missing
        assert (await second.lease()).seqs == seqs
        assert second.left_out == seqs


async def test_a_message_that_comes_again_is_left_out_too(place: Place) -> None:
    first, second = await place.consumers("a", "b")
    await place.publish(2)
    await second.lease()
    batch = await first.lease()
    assert batch.lease_id is not None
    await store.settle(
        place.database, first.number, Settlement(leases=[batch.lease_id] * 2, seqs=[3, 4], failures=[RELEASE, RELEASE])
    )
    again = await first.lease()
    assert (again.seqs, again.data, first.left_out) == ([3, 4], ["0", "1"], [3, 4])


async def test_consumers_far_apart_keep_nothing_for_each_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "NEAR", 3)
    first, second = await place.consumers("a", "b")
    await place.publish(10)
    await first.lease()
    await place.publish(1)
    await first.lease()
    await second.lease(2)
    assert second.left_out == []


async def test_one_leads_and_the_others_wait_for_it_if_calls_bring_much(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_reads, "MUCH", 1)
    monkeypatch.setattr(shared_reads, "LONGEST_WAIT", 60.0)
    first, second = await place.consumers("a", "b")
    await place.publish(4)
    begun, go_on, calling = anyio.Event(), anyio.Event(), first.calls.lease

    async def slow(*arguments: Any, **known: Any) -> Batch:
        begun.set()
        await go_on.wait()
        return await calling(*arguments, **known)

    first.calls.lease = slow  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        group.start_soon(first.lease)
        await begun.wait()
        group.start_soon(second.lease)
        await anyio.wait_all_tasks_blocked()
        assert second.reader.seq == 2
        go_on.set()
    assert (second.reader.seq, second.left_out) == (6, [3, 4, 5, 6])
    assert second.reader.follows  # it has not looked for more than these
    assert not first.reader.follows
    await place.publish(4)
    await second.lease()
    assert not second.reader.follows, "with nothing kept that it has not read, it leads"


async def test_a_leader_that_fails_or_is_slow_holds_up_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "MUCH", 1)
    monkeypatch.setattr(shared_reads, "LONGEST_WAIT", 0.0)
    first, second = await place.consumers("a", "b")
    await place.publish(2)
    begun = anyio.Event()

    async def stuck(*_arguments: Any, **_known: Any) -> Batch:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    first.calls.lease = stuck  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        group.start_soon(first.lease)
        await begun.wait()
        assert (await second.lease()).seqs == [3, 4]
        group.cancel_scope.cancel()
    assert second.reader._stream is not None
    assert second.reader._stream.leading is None


async def test_the_streams_of_a_process_share_the_room(place: Place) -> None:
    sizes = []
    for stream in ("x", "x", "y", "y"):
        reader = place.reads.reader(LeaseCalls(place.database, 1))
        reader.join(stream)
        assert reader._stream is not None
        sizes.append(reader._stream.recent.max_size)
    assert sizes == [0, shared_reads.MAX_RECENT, 0, shared_reads.MAX_RECENT // 2]


class Order(msgspec.Struct):
    number: int
    text: str


class Reversed:
    """Stores payloads backwards."""

    name = "reversed"

    def encode(self, data: bytes, _associated: bytes) -> tuple[bytes, dict[str, Any]]:
        return data[::-1], {}

    def decode(self, data: bytes, _about: Mapping[str, Any], _associated: bytes) -> bytes:
        return data[::-1]


@pytest.mark.parametrize("codec", [None, Reversed()], ids=["JSON", "codec"])
async def test_consumers_of_an_app_get_equal_messages_of_their_own(dsn: str, codec: Codec | None) -> None:
    app, seen = App(dsn), {name: Seen() for name in ("a", "b", "c")}
    orders = app.stream("orders", Order, codec=codec)
    for name, notes in seen.items():

        @app.consumer(orders, name=name)
        async def handle(order: Order, *, notes: Seen = notes) -> None:
            notes.note((order.number, order.text))
            order.text = "changed"  # which no other consumer sees

    async with running(app):
        for start in range(0, 300, 50):
            await app.publish_many("orders", [(f"k.{n % 7}", Order(n, "x" * 5000)) for n in range(start, start + 50)])
        await app.idle()
    for notes in seen.values():
        assert sorted(notes.notes) == [(number, "x" * 5000) for number in range(300)]
