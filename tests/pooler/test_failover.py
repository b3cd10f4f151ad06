"""A server behind a pooler does not notice that its database fails over to a standby that lagged behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import asyncpg
import httpx
import pytest

from headrace import App
from headrace.model.specs import ConsumerSpec
from headrace.server.asgi import Server
from tests.pooler.conftest import Pooler, pooling
from tests.runtime.running import eventually
from tests.server.calling import Api
from tests.support.clusters import Standby, cluster, standby

pytestmark = pytest.mark.asyncio


class Failing:
    """An API with a database that is about to fail over.

    Args:
        api: An API behind a pooler.
        pooler: The pooler of the primary.
        primary: A running server.
        other: Its standby.
    """

    def __init__(self, api: Api, pooler: Pooler, primary: Any, other: Standby) -> None:
        self.api = api
        self._pooler = pooler
        self._primary = primary
        self._other = other

    async def fall_behind(self) -> None:
        """Stop the replication to the standby."""
        primary = await asyncpg.connect(self._primary.url())
        copy = await asyncpg.connect(self._other.url)
        there = await primary.fetchval("select pg_current_wal_flush_lsn()::text")

        async def arrived() -> bool:
            return bool(await copy.fetchval("select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", there))

        await eventually(arrived)
        await primary.close()
        await copy.close()
        await anyio.to_thread.run_sync(self._other.stop)

    async def fail_over(self) -> None:
        """Replace the primary with the standby."""
        await anyio.to_thread.run_sync(self._primary.stop, "immediate")
        await anyio.to_thread.run_sync(self._other.start)
        await anyio.to_thread.run_sync(self._other.promote)
        await self._pooler.aim(self._other.url)

    async def publish(self, count: int, what: str) -> None:
        """Publish messages with new keys and data. Retries while the database is unavailable."""
        messages = [{"key": f"{what}.{n}", "data": {what: n}} for n in range(count)]
        answer = await self.when_up("POST", "/streams/orders/messages", {"messages": messages})
        assert answer == {"data": {"published": count}}

    async def receive(self, consumer: str) -> list[dict[str, Any]]:
        """Receive and ack all available messages."""
        messages: list[dict[str, Any]] = []
        while found := (await self.when_up("POST", f"{consumer}/receive", {"batch_size": 100}))["data"]:
            await self.api.post(f"{consumer}/ack", {"ack_ids": [one["ack_id"] for one in found]})
            messages += [one["message"] for one in found]
        return messages

    async def when_up(self, method: str, path: str, body: Any) -> Any:
        """Repeat a request while the answer is 503, and check that it is then 200."""
        answers: list[httpx.Response] = []

        async def answered() -> bool:
            answers.append(await self.api.answer(method, path, body))
            return answers[-1].status_code != 503

        await eventually(answered)
        assert answers[-1].status_code == 200, answers[-1].text
        return answers[-1].json()


async def test_contents_that_a_failover_took_back_are_never_delivered_for_the_new_ones(tmp_path: Path) -> None:
    with (
        cluster(tmp_path / "primary", wal_level="replica") as primary,
        standby(primary) as other,
        pooling(primary.url()) as pooler,
    ):
        app = App(pooler.url(primary.url()), streams=["orders"])
        server = Server(app)
        transport = httpx.ASGITransport(app=server)
        async with app.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert app.database.pooled
            failing = Failing(Api(client, server), pooler, primary, other)
            for name in ("ship", "bill"):
                await app.admin.create_consumer(ConsumerSpec(stream="orders", name=name))
            consumers = ["/streams/orders/consumers/ship", "/streams/orders/consumers/bill"]
            await failing.publish(1, "first")
            for consumer in consumers:
                assert len(await failing.receive(consumer)) == 1
            await failing.fall_behind()
            await failing.publish(60, "lost")
            lost = {one["seq"] for one in await failing.receive(consumers[0])}
            await failing.fail_over()
            await failing.publish(60, "new")
            for consumer in consumers:
                found = await failing.receive(consumer)
                assert len(lost & {one["seq"] for one in found}) > 20, "no seqs were given again"
                assert [one["data"] for one in found] == [{"new": n} for n in range(60)]
                assert [one["key"] for one in found] == [f"new.{n}" for n in range(60)]
