"""Batched publishing. Concurrent requests to one stream share a transaction. Each is still
published completely or not at all."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime

import msgspec

from headrace import store
from headrace.model.errors import InvalidInput
from headrace.model.keys import check_key
from headrace.model.messages.publish_options import PLAIN, PublishOptions, due
from headrace.server.data_plane.coalescing import fail
from headrace.server.data_plane.gathering import Gathering
from headrace.server.errors import unavailable
from headrace.store.messages.publish import CHUNK_MESSAGES

MAX_TRANSACTIONS = 2
"""Concurrent transactions of one stream. There is one, as long as the next one can take all requests that wait for it.
Two would share them, and each costs about the same."""

SHARED_CHARACTERS = 250_000
"""Characters of data above which requests share no transaction. There is nothing to save any more, and a call that does not
fit into the buffers of its connection waits several times until the server has read a part of it."""


class Incoming(msgspec.Struct):
    """Messages to publish. The lists are parallel. `data` and `headers` are JSON text."""

    keys: list[str] = []
    data: list[str] = []
    headers: list[str | None] = []
    options: list[PublishOptions] = []

    def add(self, key: str, data: str, headers: str | None = None, options: PublishOptions = PLAIN) -> None:
        """Add a message. Raises as `with_expiry` does."""
        if options.expires_in is not None:
            headers, options = options.in_headers(headers)
        self.keys.append(key)
        self.data.append(data)
        self.headers.append(headers)
        self.options.append(options)

    def extend(self, other: Incoming) -> None:
        """Add the messages of another one."""
        self.keys += other.keys
        self.data += other.data
        self.headers += other.headers
        self.options += other.options

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def characters(self) -> int:
        return sum(map(len, self.data))

    @property
    def due(self) -> datetime | None:
        """When the last scheduled message is to be delivered."""
        return None if self.plain else due(self.options)

    @property
    def plain(self) -> bool:
        """Whether no message has options."""
        return self.options.count(PLAIN) == len(self.options)


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
        self._queue: deque[_PendingPublish] = deque()
        self._workers = 0
        self._messages = self._characters = 0  # of the queue
        self._lone = 0  # transactions for one request each, which can't be shared
        self._gathering = Gathering(clock)
        self._clock = clock
        self.used_at = clock()

    @property
    def unused(self) -> bool:
        """Whether no request is in work."""
        return not self._workers

    def publish(self, messages: Incoming) -> asyncio.Future[int]:
        """Publish messages, all or none. The future's result is how many were published or scheduled.

        Its exceptions: UnknownStream, InvalidInput, StreamFull, StoreUnavailable.

        Raises:
            StoreUnavailable: the server is stopping. Nothing is published.
        """
        self.used_at = self._clock()
        request = _PendingPublish(messages)
        if self._workers < MAX_TRANSACTIONS and (not self._workers or self._exceeds_transaction(request)):
            self._start(self._work)
            self._workers += 1
        self._queue.append(request)
        self._messages += len(messages)
        self._characters += request.characters
        self._gathering.joined(self._queue)
        return request.answer

    def _exceeds_transaction(self, request: _PendingPublish) -> bool:
        """Return whether one transaction can't take the requests in the queue and this one."""
        return (
            self._lone > 0
            or not request.messages.plain
            or self._messages + len(request.messages) > CHUNK_MESSAGES
            or self._characters + request.characters > SHARED_CHARACTERS
        )

    async def _work(self) -> None:
        try:
            while self._queue:
                await self._gathering.gather(self._queue)
                requests = self._next()
                if not requests:  # while this one waited for more of them
                    break
                try:
                    with self._gathering.call(requests):
                        await self._publish(requests)
                except BaseException as error:  # raised in the requests
                    fail([one.answer for one in requests], error)
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._workers -= 1
            remaining, self._queue = self._queue, deque()  # empty unless cancelled
            self._messages = self._characters = 0
            fail([one.answer for one in remaining], unavailable("The server is stopping. Try again."))

    def _next(self) -> list[_PendingPublish]:
        """Take the requests that share the next statement. None if another transaction has taken all of them.

        A request with options is published alone, since its answer is the
        number of new messages.
        """
        taken: list[_PendingPublish] = []
        count = characters = 0
        while self._queue:
            following = self._queue[0]
            count += len(following.messages)
            characters += following.characters
            fits = count <= CHUNK_MESSAGES and characters <= SHARED_CHARACTERS and following.messages.plain
            if taken and not fits:
                break
            taken.append(self._queue.popleft())
            self._messages -= len(following.messages)
            self._characters -= following.characters
            if not following.messages.plain:
                break
        return taken

    async def _publish(self, requests: list[_PendingPublish]) -> None:
        if len(requests) == 1:
            await self._publish_one(requests[0])
            return
        combined = Incoming()
        for request in requests:
            combined.extend(request.messages)
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
        lone = not messages.plain
        self._lone += lone
        try:
            count = await publish_alone(self._database, self._stream, messages)
        except Exception as error:
            fail([request.answer], error)
        else:
            _answer(request, count)
        finally:
            self._lone -= lone


def _answer(request: _PendingPublish, count: int) -> None:
    if not request.answer.done():
        request.answer.set_result(count)


async def publish_alone(database: store.Database, stream: str, messages: Incoming) -> int:
    """Publish the messages of one request, all or none. Returns how many were published or scheduled. Raises as
    `PublishBatcher.publish` does."""
    try:
        return await store.publish_all(
            database,
            stream,
            messages.keys,
            messages.data,
            messages.headers,
            PLAIN if messages.plain else messages.options,
        )
    except InvalidInput:
        for key in messages.keys:
            check_key(key)  # the store can't name the invalid one
        raise
