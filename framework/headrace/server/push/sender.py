"""The handler of a push consumer. It sends the POST requests and evaluates the responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import aiohttp
import msgspec
from yarl import URL

from headrace.model.outcomes import Retry
from headrace.model.push import Push
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.server.push import answers
from headrace.server.push.connecting import Denied, timeout
from headrace.server.push.shapes import Shapes
from headrace.server.push.signing import Stamps

LARGEST_ANSWER = 64_000
"""Largest part of a response's body that is read, in bytes. A connection with more to come is closed."""

PATIENCE = 1.0
"""Seconds to read the body after a 2xx status, so that the connection can be reused. The status alone decides."""


class Refused(Retry):
    """The endpoint refused a batch. Its traceback is hidden, since Headrace's own code is of no use there."""

    __traceback__ = None


class Answer(msgspec.Struct, frozen=True):
    """Why messages are delivered again. `after` is the delay in seconds, or None to use the backoff."""

    reason: str
    after: float | None = None


class Sender:
    """Sends the messages of one consumer.

    Args:
        push: the URL and settings.
        shapes: makes the bodies.
        stamps: makes the headers with id, time and signature.
        session: the HTTP client that all consumers share.
        agent: the User-Agent.
        now: returns the current time.
    """

    def __init__(
        self, push: Push, shapes: Shapes, stamps: Stamps, session: aiohttp.ClientSession, agent: str,
        now: Callable[[], datetime],
    ) -> None:  # fmt: skip
        self._url = URL(push.url)
        self._headers = {
            "content-type": "application/json",
            "user-agent": agent,
            **{name.lower(): value for name, value in push.headers.items()},
        }
        self._seconds = push.timeout
        self._timeout = timeout(push.timeout)
        self._shapes = shapes
        self._stamps = stamps
        self._session = session
        self._now = now

    async def one(self, message: Message) -> Retry | None:
        """The handler of a consumer that sends single messages."""
        failed = await self._send((message.seq,), self._shapes.one(message))
        return None if failed is None else Retry(failed.reason, after=failed.after)

    async def many(self, batch: Batch) -> None:
        """The handler of a consumer that sends batches. A batch is acked or nacked as a whole."""
        messages = batch.messages
        failed = await self._send([message.seq for message in messages], self._shapes.many(messages))
        if failed is not None:
            raise Refused(failed.reason, after=failed.after)

    async def _send(self, seqs: tuple[int, ...] | list[int], body: bytes) -> Answer | None:
        stamps = self._stamps
        now = int(self._now().timestamp())
        headers = {**self._headers, **stamps.headers(stamps.id(seqs), now, body)}
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, timeout=self._timeout, allow_redirects=False
            ) as response:
                if answers.is_ack(response.status):
                    await self._read_on(response)
                    return None
                return await self._refused(response)
        except TimeoutError:
            return Answer(f"There was no answer within {self._seconds:g} s")
        except aiohttp.ClientConnectorError as error:
            return Answer(self._unreachable(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(f"The request broke off: {answers.one_line(str(error) or type(error).__name__)}")

    async def _refused(self, response: aiohttp.ClientResponse) -> Answer:
        status, headers = response.status, response.headers
        try:
            body = await _bounded(response)
        except (TimeoutError, aiohttp.ClientError, OSError):
            body = b""  # the status is known, and the body is optional
        return Answer(
            answers.reason(status, response.reason, headers, body), answers.wait(status, headers, self._now())
        )

    async def _read_on(self, response: aiohttp.ClientResponse) -> None:
        """Read the rest of a response, so that the connection can be reused if that is short.
        The messages are acked in any case."""
        if response.content.at_eof():
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await _bounded(response)
        except (TimeoutError, aiohttp.ClientError, OSError):
            response.close()

    def _unreachable(self, error: aiohttp.ClientConnectorError) -> str:
        cause = error.os_error
        said = cause.strerror or str(cause)
        if isinstance(cause, Denied):
            return said
        return f"{self._url.host}:{self._url.port} can't be reached: {answers.one_line(said)}"


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """Return the body up to its limit. If there is more, the connection is closed at the end of the request."""
    parts, room = [], LARGEST_ANSWER
    while room > 0 and (part := await response.content.read(room)):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)
