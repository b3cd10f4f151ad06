"""The raw limits of `http`: the same web server with an application that answers each call with the same bytes.

`python -m benchmarks.http_bare --port N --batch N --note N [--database URL]`

With a database, it stores what is published by bare inserts, and a request to receive waits until there is something for it.
It reads nothing back, and keeps no track of deliveries. No server on that web server that stores messages in Postgres
can be faster.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import uvicorn
import uvloop

from benchmarks import payloads
from benchmarks.limits import PlainLog
from headrace.store import Database

Event = MutableMapping[str, Any]

_MESSAGE = (
    b'{"ack_id":"%b","message":{"key":"orders.eu.1","data":%b,"seq":1,"stream_id":"%b","headers":null,'
    b'"inserted_at":"2026-01-01T00:00:00.000000Z","attempt":1}}'
)

CONNECTIONS = 8
"""As many as there are publishers."""


class Published(msgspec.Struct):
    """A message of a request."""

    key: str
    data: msgspec.Raw


class Publish(msgspec.Struct):
    """A request to publish."""

    messages: list[Published]


_decode = msgspec.json.Decoder(Publish).decode


class PlainStore:
    """Stores messages by bare inserts, and counts what each consumer has received.

    Args:
        logs: the table, over the connections that may insert at a time.
        batch: the number of messages of a request.
    """

    def __init__(self, logs: list[PlainLog], batch: int) -> None:
        self._free: asyncio.Queue[PlainLog] = asyncio.Queue()
        for log in logs:
            self._free.put_nowait(log)
        self._batch = batch
        self._stored = 0
        self._given: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def publish(self, body: bytes) -> None:
        """Store the messages of a request."""
        messages = _decode(body).messages
        log = await self._free.get()
        await log.insert_many([one.key for one in messages], [bytes(one.data).decode() for one in messages])
        self._free.put_nowait(log)
        self._stored += len(messages)
        for consumer, waiting in self._waiting.items():
            while waiting and self._take(consumer):
                waiting.popleft().set_result(None)

    async def receive(self, consumer: str) -> None:
        """Wait until there are messages for a request."""
        if not self._take(consumer):
            free = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(consumer, deque()).append(free)
            await free

    def _take(self, consumer: str) -> bool:
        given = self._given.get(consumer, 0)
        if given >= self._stored:
            return False
        self._given[consumer] = given + self._batch  # the last request of a publisher may have fewer
        return True


def answers(batch: int, note: int) -> dict[str, bytes]:
    """The answer to each kind of call, by the last part of its path."""
    message = _MESSAGE % (b"a" * 48, msgspec.json.encode(payloads.order(1, note)), b"s" * 36)
    return {
        "messages": b'{"data":{"published":%d}}' % batch,
        "receive": b'{"stale":[],"data":[%b]}' % b",".join([message] * batch),
        "ack": b'{"success":true}',
        "ready": b"{}",
    }


def application(known: dict[str, bytes], store: PlainStore | None) -> Any:
    """An ASGI application that reads the body, and answers."""

    async def answer(
        scope: Event, receive: Callable[[], Awaitable[Event]], send: Callable[[Event], Awaitable[None]]
    ) -> None:
        event = await receive()
        pieces = [event.get("body", b"")]
        while event.get("more_body"):
            event = await receive()
            pieces.append(event.get("body", b""))
        path: str = scope["path"]
        call = path.rpartition("/")[2]
        if store is not None and call == "messages":
            await store.publish(b"".join(pieces))
        elif store is not None and call == "receive":
            await store.receive(path)
        body = known[call]
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


async def serve(port: int, batch: int, note: int, dsn: str | None) -> None:
    """Serve until the process is stopped."""
    store = None
    if dsn is not None:
        database = Database(dsn, application_name="benchmarks")
        store = PlainStore([PlainLog(await database.connect()) for _ in range(CONNECTIONS)], batch)
    config = uvicorn.Config(
        application(answers(batch, note), store), port=port, http="httptools", ws="none", lifespan="off",
        log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=1,    # requests to receive would wait for ever
    )  # fmt: skip
    await uvicorn.Server(config).serve()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--port", "--batch", "--note"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--database")
    asked = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(asked.port, asked.batch, asked.note, asked.database))


if __name__ == "__main__":
    main()
