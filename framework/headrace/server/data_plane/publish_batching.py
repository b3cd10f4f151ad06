"""Batched publishing. Concurrent requests to one stream share a transaction. Each is still
published completely or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime

import msgspec

from headrace import store
from headrace.model.errors import InvalidInput
from headrace.model.keys import check_key
from headrace.model.payloads import UniqueWhile
from headrace.server.data_plane.coalescing import fail
from headrace.server.errors import unavailable
from headrace.store.messages.publish import CHUNK_CHARACTERS, CHUNK_MESSAGES

MAX_TRANSACTIONS = 2
"""Concurrent transactions of one stream. One may be written while another waits for the disk."""


class Incoming(msgspec.Struct):
    """Messages to publish. The lists are parallel. `data` and `headers` are JSON text."""

    keys: list[str] = []
    data: list[str] = []
    headers: list[str | None] = []
    message_ids: list[str | None] = []
    deliver_at: list[datetime | None] = []
    unique_keys: list[str | None] = []
    unique_while: UniqueWhile = "pending"

    def add(
        self, key: str, data: str, headers: str | None = None, message_id: str | None = None,
        deliver_at: datetime | None = None, unique_key: str | None = None,
    ) -> None:  # fmt: skip
        """Add a message."""
        self.keys.append(key)
        self.data.append(data)
        self.headers.append(headers)
        self.message_ids.append(message_id)
        self.deliver_at.append(deliver_at)
        self.unique_keys.append(unique_key)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def characters(self) -> int:
        return sum(map(len, self.data))

    @property
    def plain(self) -> bool:
        """Whether no message has an id, a scheduled time or a unique key."""
        return not any(self.message_ids) and not any(self.deliver_at) and not any(self.unique_keys)


class _PendingPublish:
    __slots__ = ("answer", "characters", "messages")

    def __init__(self, messages: Incoming) -> None:
        self.messages = messages
        self.characters = messages.characters
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()


class PublishBatcher:
    """Publishes the messages of this process's requests to one stream.

    Args:
        database: an open database.
        stream: the stream's name.
        start: starts a task that lives as long as the engine.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        database: store.Database,
        stream: str,
        start: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._stream = stream
        self._start = start
        self._queue: list[_PendingPublish] = []
        self._workers = 0
        self._clock = clock
        self.used_at = clock()

    @property
    def unused(self) -> bool:
        """Whether no request is in work."""
        return not self._workers

    async def publish(self, messages: Incoming) -> int:
        """Publish messages, all or none. Returns how many were published or scheduled.

        Raises:
            UnknownStream, InvalidInput, StreamFull, StoreUnavailable.
        """
        self.used_at = self._clock()
        request = _PendingPublish(messages)
        self._queue.append(request)
        if self._workers < MAX_TRANSACTIONS:
            self._workers += 1
            self._start(self._work)
        return await request.answer

    async def _work(self) -> None:
        try:
            while self._queue:
                requests = self._next()
                try:
                    await self._publish(requests)
                except BaseException as error:  # raised in the requests
                    fail([one.answer for one in requests], error)
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._workers -= 1
            remaining, self._queue = self._queue, []  # empty unless cancelled
            fail([one.answer for one in remaining], unavailable("The server is stopping. Try again."))

    def _next(self) -> list[_PendingPublish]:
        """Take the requests that fit into one statement.

        A request with message ids, unique keys or scheduled messages is published alone, since its answer is the
        number of new messages.
        """
        first = self._queue.pop(0)
        taken = [first]
        if not first.messages.plain:
            return taken
        count, characters = len(first.messages), first.characters
        while self._queue:
            following = self._queue[0]
            count += len(following.messages)
            characters += following.characters
            if count > CHUNK_MESSAGES or characters > CHUNK_CHARACTERS or not following.messages.plain:
                break
            taken.append(self._queue.pop(0))
        return taken

    async def _publish(self, requests: list[_PendingPublish]) -> None:
        if len(requests) == 1:
            await self._publish_one(requests[0])
            return
        combined = Incoming()
        for request in requests:
            combined.keys += request.messages.keys
            combined.data += request.messages.data
            combined.headers += request.messages.headers
        try:
            await store.publish_many(self._database, self._stream, combined.keys, combined.data, combined.headers)
        except InvalidInput:  # from one of them, and nothing is published
            for request in requests:
                await self._publish_one(request)
            return
        for request in requests:  # with `dedupe`, too, which can't count the unchanged messages per request
            _answer(request, len(request.messages))

    async def _publish_one(self, request: _PendingPublish) -> None:
        messages = request.messages
        try:
            count = await store.publish_all(
                self._database, self._stream, messages.keys, messages.data, messages.headers,
                message_ids=messages.message_ids, deliver_at=messages.deliver_at,
                unique_keys=messages.unique_keys, unique_while=messages.unique_while,
            )  # fmt: skip
        except Exception as error:
            fail([request.answer], _with_key(messages, error))
        else:
            _answer(request, count)


def _answer(request: _PendingPublish, count: int) -> None:
    if not request.answer.done():
        request.answer.set_result(count)


def _with_key(messages: Incoming, error: Exception) -> Exception:
    """Find the invalid key of an error, which the store can't name."""
    if isinstance(error, InvalidInput):
        try:
            for key in messages.keys:
                check_key(key)
        except InvalidInput as key_error:
            return key_error
    return error
