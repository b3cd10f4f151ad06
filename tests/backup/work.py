"""Publishers and workers that continue while a server is backed up, and that finish the work on the restored one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from headrace import App, Message, Transaction
from tests.runtime.running import running
from tests.support.servers import opened

KEYS = 13

TABLES = (
    "create table done (seq bigint primary key, key text not null, place bigint generated always as identity)",
    "create table noted (seq bigint not null, key text not null, place bigint generated always as identity)",
)


class Work:
    """Publishers of the stream `orders`, and two consumers that write what they did into the same database: `exact`
    in the transaction of its ack, and `plain` in another one.

    Args:
        dsn: the URL of the database.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._handled = 0
        self._news = anyio.Event()
        self._gate = anyio.Event()
        self._attempts: list[int] = []

    def _app(self) -> App:
        app = App(self.dsn)

        @app.consumer("orders", transactional=True, ack_wait="2s")
        async def exact(message: Message, tx: Transaction) -> None:
            await tx.execute("insert into done (seq, key) values ($1, $2)", message.seq, message.key)
            self._note()

        @app.consumer("orders", ack_wait="2s")
        async def plain(message: Message) -> None:
            if message.key == "held":
                self._attempts.append(message.attempt)
                await self._gate.wait()
            await app.database.fetch("insert into noted (seq, key) values ($1, $2)", message.seq, message.key)
            self._note()

        return app

    def _note(self) -> None:
        self._handled += 1
        self._news.set()
        self._news = anyio.Event()

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Publish and work until the end of the block. One message stays in its handler."""
        app = self._app()
        async with running(app):
            for table in TABLES:
                await app.database.fetch(table)
            await app.publish("orders", "held", {})
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(self._publish, app, number)
                yield
                self._gate.set()
                group.cancel_scope.cancel()

    async def _publish(self, app: App, number: int) -> None:
        """Publish to separate keys: of two transactions with one key the later seq may commit, and be handled, first."""
        count = 0
        while True:
            count += 1
            async with app.transaction() as transaction:
                for _ in range(3):
                    await transaction.publish("orders", f"k{number}.{count % KEYS}", {"n": count})

    async def until(self, count: int) -> None:
        """Wait until so many further messages were handled."""
        goal = self._handled + count
        with anyio.fail_after(60):
            while self._handled < goal:
                await self._news.wait()

    async def finishes(self) -> None:
        """Work off all that is left, and check what was done in all."""
        app = self._app()
        self._gate.set()
        async with running(app):
            await app.publish("orders", "k1.1", {"n": 0})
            await app.idle()
        assert self._attempts == [2], "the message that was in its handler did not come again"
        async with opened(self.dsn) as database:
            everything = [
                row["seq"] for row in await database.fetch("select seq from headrace_streams.orders order by seq")
            ]
            done = await database.fetch("select seq, key from done order by place")
            noted = await database.fetch("select distinct seq from noted order by seq")
            assert sorted(row["seq"] for row in done) == everything
            assert [row["seq"] for row in noted] == everything
            newest: dict[str, int] = {}
            for row in done:
                assert newest.get(row["key"], 0) < row["seq"], "out of order"
                newest[row["key"]] = row["seq"]
            assert await database.fetch("select * from headrace.sequences_behind()") == []
