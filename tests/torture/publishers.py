"""Publishers that continue through database outages, and record which messages were confirmed."""

from __future__ import annotations

import asyncio
import random

import anyio
import asyncpg

from headrace.app.app import App
from headrace.model.errors import StoreUnavailable


class Publishers:
    """Several concurrent publishers. Each publishes to its own keys, one message after the other. Every message has
    an id.

    A publish that raises is retried with the same id until it returns.

    Attributes:
        promised: The ids of confirmed messages by key, in order. A message is confirmed when its
            publish returned.
        doubtful: The ids of messages of which a publish raised. They may be stored more than once.
    """

    def __init__(self, dsn: str, stream: str, seed: int, *, count: int = 3, keys: int = 4, pause: float = 0.01) -> None:
        self._dsn = dsn
        self._stream = stream
        self._seed = seed
        self._count = count
        self._keys = keys
        self._pause = pause
        self.promised: dict[str, list[str]] = {}
        self.doubtful: set[str] = set()

    async def run(self, until: anyio.Event) -> None:
        """Publish until stopped, and finish the last publish."""
        async with App(self._dsn, max_connections=self._count + 1) as app, asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._publish(app, number, until))

    async def _publish(self, app: App, number: int, until: anyio.Event) -> None:
        chance = random.Random(self._seed + number)
        published = 0
        while not until.is_set():
            key = f"publisher{number}.key{chance.randrange(self._keys)}"
            ids = [f"{number}-{published + place}" for place in range(chance.choice((1, 1, 1, 5, 20)))]
            published += len(ids)
            await self._insist(app, key, ids, chance)
            self.promised.setdefault(key, []).extend(ids)
            await asyncio.sleep(self._pause * len(ids) * chance.uniform(0.5, 1.5))

    async def _insist(self, app: App, key: str, ids: list[str], chance: random.Random) -> None:
        while True:
            try:
                if len(ids) == 1:
                    await app.publish(self._stream, key, {"id": ids[0]})
                else:
                    await app.publish_many(self._stream, [(key, {"id": each}) for each in ids])
                return
            except StoreUnavailable:
                self.doubtful.update(ids)
                await asyncio.sleep(chance.uniform(0.01, 0.1))

    @property
    def count(self) -> int:
        return sum(len(ids) for ids in self.promised.values())

    async def check(self, connection: asyncpg.Connection) -> int:
        """Check that every confirmed message was applied in order, and once unless it is doubtful.

        The ledger has refused effects that came out of order by seq (see `violations`). Returns how
        many came twice.
        """
        assert [dict(row) for row in await connection.fetch("select * from violations")] == []
        rows = await connection.fetch(
            f"""select key, array_agg(what order by applied.seq) as ids
                from applied join headrace_streams.{self._stream} using (seq) group by key"""
        )
        twice = 0
        assert {row["key"] for row in rows} == set(self.promised)
        for row in rows:
            first = list(dict.fromkeys(row["ids"]))
            assert first == self.promised[row["key"]]
            if len(first) != len(row["ids"]):
                again = [each for each in first if row["ids"].count(each) > 1]
                assert self.doubtful.issuperset(again), f"{again} came twice, though their publish had returned at once"
                twice += len(again)
        missing = await connection.fetchval(
            f"select count(*) from headrace_streams.{self._stream} where seq not in (select seq from applied)"
        )
        assert missing == 0, f"{missing} messages are in the stream that nobody has handled"
        return twice
