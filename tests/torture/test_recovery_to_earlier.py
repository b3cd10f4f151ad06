"""The server is restored to an earlier time, repeatedly, while publishers and workers keep running with
the same address.
"""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import pytest

from headrace import App, Message, StoreUnavailable, store
from headrace.runtime.messages.transaction import Transaction
from tests.support.recovery import Archived, archived

pytestmark = pytest.mark.asyncio

KEYS = 5
STEP = 100
"""Numbers of messages before the restore point, after it, and after the recovery."""


@pytest.mark.parametrize("recoveries", [1, pytest.param(10, marks=pytest.mark.torture)])
@pytest.mark.long
async def test_order_and_effects_hold_over_recoveries_to_an_earlier_time(tmp_path: Path, recoveries: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with archived(tmp_path / "postgres") as server:
        app = App(server.server.url())
        run = Run(app, random.Random(seed))
        async with app:
            await store.migrate(app.database)
            await app.database.fetch("create table bills (n int)")
        await anyio.to_thread.run_sync(server.back_up)
        with anyio.fail_after(60 + 30 * recoveries):
            async with app.running(), anyio.create_task_group() as group:
                group.start_soon(run.publish)
                for number in range(recoveries):
                    await run.go_back(server, f"moment {number}")
                    # A recovery starts from the backup, so the next restore point needs a backup on this
                    # timeline.
                    if number + 1 < recoveries:
                        await anyio.to_thread.run_sync(server.back_up_again)
                run.stop()
            async with app.running():
                await app.idle()
                await run.judge()


class Run:
    """The published and handled messages, and the final checks."""

    def __init__(self, app: App, chance: random.Random) -> None:
        self._app = app
        self._chance = chance
        self._count = 0
        self._publishing = True
        self._news = anyio.Event()
        self._handled: list[tuple[str, int]] = []
        self._since = 0  # of these, the first that was handled after the last recovery
        app.consumer("orders", name="ship", ack_wait="2s", backoff="10ms", concurrency=4)(self._ship)
        app.consumer("orders", name="bill", ack_wait="2s", backoff="10ms", concurrency=4, transactional=True)(
            self._bill
        )

    async def _ship(self, message: Message) -> None:
        self._handled.append((message.key, message.data))
        if self._chance.random() < 0.2:
            await anyio.sleep(self._chance.random() * 0.02)

    async def _bill(self, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into bills values ($1)", message.data)

    async def publish(self) -> None:
        while self._publishing:
            self._count += 1
            try:
                await self._app.publish("orders", f"k.{self._count % KEYS}", self._count)
            except StoreUnavailable:
                await anyio.sleep(0.01)
            self._news.set()
            self._news = anyio.Event()

    def stop(self) -> None:
        self._publishing = False

    async def _step(self) -> None:
        end = self._count + STEP
        while self._count < end:
            await self._news.wait()

    async def go_back(self, server: Archived, moment: str) -> None:
        await self._step()
        await self._app.database.fetchval("select pg_create_restore_point($1)", moment)
        await self._step()
        await anyio.to_thread.run_sync(server.recover, moment)
        self._since = len(self._handled)
        await self._step()

    async def judge(self) -> None:
        rows = await self._app.database.fetch(
            "select key, data::text::int as n from headrace_streams.orders order by seq"
        )
        stored = [(row["key"], row["n"]) for row in rows]
        bills = [row["n"] for row in await self._app.database.fetch("select n from bills")]
        assert sorted(bills) == sorted(n for _, n in stored), "an effect was lost or doubled"
        assert set(stored) <= set(self._handled), "a message was lost"
        place = {message: place for place, message in enumerate(stored)}
        for key in {key for key, _ in stored}:
            seen = dict.fromkeys(place[one] for one in self._handled[self._since :] if one[0] == key and one in place)
            assert list(seen) == sorted(seen), f"{key} is out of order"
