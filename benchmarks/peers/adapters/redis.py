"""Redis Streams: a stream, a consumer group for each reader, and a loop of XREADGROUP, handling and XACK by the batch.

Whether an acknowledged write survives a crash is the server's setting (`appendfsync`), which the name of the peer says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import redis.asyncio as redis

from benchmarks.peers.process.adapter import Adapter, Unable
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from benchmarks.peers.process.sql import decode, encode

STREAM = "orders"


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {
        "batch": 1000,
        "loops": 1,
        "block_ms": 1000,
        "claim_ms": 30_000,
        "connections": 16,
    }

    async def set_up(self) -> None:
        async with self._client() as client:
            await client.flushall()
            for reader in range(self.readers):
                await client.xgroup_create(STREAM, _group(reader), id="0", mkstream=True)

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        async with self._client() as self._redis:
            yield

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        if delay is not None:
            raise Unable("entries have no time of delivery")
        if len(messages) == 1:
            await self._redis.xadd(STREAM, {"order": encode(messages[0].order)})
            return
        async with self._redis.pipeline(transaction=True) as pipeline:
            for one in messages:
                pipeline.xadd(STREAM, {"order": encode(one.order)})
            await pipeline.execute()

    async def remaining(self) -> int:
        groups = await self._redis.xinfo_groups(STREAM)
        return sum(int(group["lag"] or 0) + int(group["pending"]) for group in groups)

    async def stored(self) -> int:
        return int(await self._redis.xlen(STREAM))

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        async with self._client() as client, asyncio.TaskGroup() as group:
            for number in range(self.settings["loops"]):
                group.create_task(self._loop(client, handler, _group(reader), f"worker-{id(self)}-{number}", stop))

    async def _loop(self, client: redis.Redis, handler: Handler, group: str, name: str, stop: asyncio.Event) -> None:
        batch, claim = self.settings["batch"], self.settings["claim_ms"]
        asked = 0.0
        while not stop.is_set():
            entries: list[Any] = []
            now = asyncio.get_running_loop().time()
            if now - asked > claim / 1000:
                asked = now
                entries = (await client.xautoclaim(STREAM, group, name, claim, count=batch))[1]
            if not entries:
                answer = await client.xreadgroup(
                    group, name, {STREAM: ">"}, count=batch, block=min(100, self.settings["block_ms"])
                )
                entries = answer[0][1] if answer else []
            if not entries:
                continue
            try:
                await handler.run([decode(fields[b"order"]) for _, fields in entries], ordered=True)
            except RuntimeError:  # the entries stay pending, until they are claimed
                continue
            await client.xack(STREAM, group, *(entry for entry, _ in entries))

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[redis.Redis]:
        # Publishes overlap at a pace. A pool that doesn't block raises an error beyond its limit.
        connections = redis.BlockingConnectionPool.from_url(
            self.url, max_connections=self.settings["connections"], timeout=None
        )
        client = redis.Redis.from_pool(connections)
        try:
            yield client
        finally:
            await client.aclose()


def _group(reader: int) -> str:
    return f"reader{reader}"
