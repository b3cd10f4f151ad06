"""NATS JetStream: a stream of limits, a durable pull consumer for each reader, and a loop that fetches batches.

Whether an acknowledged write survives a crash is the server's setting (`sync_interval`), which the name of the peer says.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import nats
from nats.errors import TimeoutError as NothingThere
from nats.js.api import ConsumerConfig, StreamConfig

from benchmarks.peers.process.adapter import Adapter
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from benchmarks.peers.process.sql import decode, encode

STREAM = "ORDERS"
SUBJECTS = "orders.>"
SCHEDULES = "schedules.>"
SCHEDULE, TARGET = "Nats-Schedule", "Nats-Schedule-Target"


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {"batch": 500, "max_ack_pending": 10_000, "ack_wait": 30.0}

    async def set_up(self) -> None:
        async with self._connected() as client:
            jetstream = client.jetstream()
            await jetstream.add_stream(
                StreamConfig(name=STREAM, subjects=[SUBJECTS, SCHEDULES], allow_msg_schedules=True)
            )
            for reader in range(self.readers):
                await jetstream.add_consumer(STREAM, self._consumer(reader))

    def _consumer(self, reader: int) -> ConsumerConfig:
        return ConsumerConfig(
            durable_name=_name(reader),
            max_ack_pending=self.settings["max_ack_pending"],
            ack_wait=self.settings["ack_wait"],
            filter_subject=SUBJECTS,
        )

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        async with self._connected() as client:
            self._jetstream = client.jetstream(publish_async_max_pending=4000)
            yield

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        if delay is not None:
            await self._schedule(messages, delay)
        elif len(messages) == 1:
            await self._jetstream.publish(messages[0].key, encode(messages[0].order))
        else:
            await asyncio.gather(*[await self._jetstream.publish_async(one.key, encode(one.order)) for one in messages])

    async def _schedule(self, messages: Sequence[Message], delay: float) -> None:
        """Publish schedules, each of which has a subject of its own, as the server wants it."""
        due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=delay)
        at = f"@at {due.strftime('%Y-%m-%dT%H:%M:%SZ')}"
        await asyncio.gather(
            *[
                await self._jetstream.publish_async(
                    f"schedules.{one.number}", encode(one.order), headers={SCHEDULE: at, TARGET: one.key}
                )
                for one in messages
            ]
        )

    async def remaining(self) -> int:
        infos = [await self._jetstream.consumer_info(STREAM, _name(reader)) for reader in range(self.readers)]
        return sum((info.num_pending or 0) + (info.num_ack_pending or 0) for info in infos)

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        async with self._connected() as client:
            subscription = await client.jetstream().pull_subscribe_bind(_name(reader), STREAM)
            while not stop.is_set():
                messages: list[Any] = []
                with suppress(NothingThere):
                    messages = await subscription.fetch(self.settings["batch"], timeout=0.5)
                if not messages:
                    continue
                try:
                    await handler.run([decode(one.data) for one in messages], ordered=True)
                except RuntimeError:
                    for one in messages:
                        await one.nak(delay=1)
                    continue
                for one in messages:
                    await one.ack()
            await client.flush()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        client = await nats.connect(self.url)
        try:
            yield client
        finally:
            await client.close()


def _name(reader: int) -> str:
    return f"reader{reader}"
