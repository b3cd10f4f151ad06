"""The handler of a push consumer. It sends the POST requests and evaluates the responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import aiohttp
import msgspec
from yarl import URL

from headrace.model.outcomes import Release, Retry
from headrace.model.push import Push
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.server.push import responses
from headrace.server.push.http_client import AddressNotAllowed, Exchange, PushClient, connection_of, timeout
from headrace.server.push.request_bodies import RequestBodies
from headrace.server.push.signing import RequestSigner

MAX_BODY = 64_000
"""Largest part of a response's body that is read, in bytes. A connection with more to come is closed."""

BODY_TIMEOUT = 1.0
"""Seconds to read the body after a 2xx status, so that the connection can be reused. The status alone decides."""


class BatchFailed(Retry):
    """A batch failure. Its traceback is hidden, since Headrace's own code is of no use there."""

    __traceback__ = None


UNSENT_DELAY = 1.0
"""Seconds before a message that could not be sent is tried again, until the circuit breaker opens."""


class Unsent(Release):
    """Nothing was sent, because there is no connection to the endpoint. That is no attempt."""


class DeliveryFailure(msgspec.Struct, frozen=True):
    """Why messages are delivered again. `after` is the delay in seconds, or None to use the backoff."""

    reason: str
    after: float | None = None


class PushHandler:
    """Sends the messages of one consumer.

    Args:
        push: the URL and settings.
        bodies: makes the bodies.
        signer: makes the headers with id, time and signature.
        client: the consumer's HTTP client.
        agent: the User-Agent.
        now: returns the current time.
    """

    def __init__(
        self, push: Push, bodies: RequestBodies, signer: RequestSigner, client: PushClient, agent: str,
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
        self._bodies = bodies
        self._signer = signer
        self._client = client
        self._now = now

    async def send_message(self, message: Message) -> Retry | None:
        """The handler of a consumer that sends single messages."""
        failure = await self._send((message.seq,), self._bodies.one(message))
        return None if failure is None else Retry(failure.reason, after=failure.after)

    async def send_batch(self, batch: Batch) -> None:
        """The handler of a consumer that sends batches. A batch is acked or nacked as a whole."""
        messages = batch.messages
        failure = await self._send([message.seq for message in messages], self._bodies.many(messages))
        if failure is not None:
            raise BatchFailed(failure.reason, after=failure.after)

    async def _send(self, seqs: tuple[int, ...] | list[int], body: bytes) -> DeliveryFailure | None:
        async with connection_of(self._client, self._seconds) as connection:
            if not connection:
                raise Unsent(f"None of the consumer's connections became free within {self._seconds:g} s")
            return await self._post(seqs, body)

    async def _post(self, seqs: tuple[int, ...] | list[int], body: bytes) -> DeliveryFailure | None:
        now = int(self._now().timestamp())
        headers = {**self._headers, **self._signer.headers(self._signer.id(seqs), now, body)}
        exchange = Exchange()
        try:
            async with self._client.session.post(
                self._url, data=body, headers=headers, timeout=self._timeout, allow_redirects=False,
                trace_request_ctx=exchange,
            ) as response:  # fmt: skip
                if responses.is_ack(response.status):
                    await self._read_rest(response)
                    return None
                return await self._failure(response)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = self._reason(error, exchange)
            if exchange.connected or not isinstance(error, OSError) or _refused_here(error):
                return DeliveryFailure(reason)
            raise Unsent(reason, after=UNSENT_DELAY) from None

    def _reason(self, error: Exception, exchange: Exchange) -> str:
        if isinstance(error, TimeoutError):
            done = "respond" if exchange.connected else "accept a connection"
            return f"The endpoint did not {done} within {self._seconds:g} s"
        if isinstance(error, aiohttp.ClientConnectorError):
            return self._unreachable(error)
        return f"The request failed: {responses.one_line(str(error) or type(error).__name__)}"

    async def _failure(self, response: aiohttp.ClientResponse) -> DeliveryFailure:
        status, headers = response.status, response.headers
        try:
            body = await _bounded(response)
        except (TimeoutError, aiohttp.ClientError, OSError):
            body = b""  # the status is known, and the body is optional
        return DeliveryFailure(
            responses.reason(status, response.reason, headers, body), responses.wait(status, headers, self._now())
        )

    async def _read_rest(self, response: aiohttp.ClientResponse) -> None:
        """Read the rest of a response, so that the connection can be reused if that is short.
        The messages are acked in any case."""
        if response.content.at_eof():
            return
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                await _bounded(response)
        except (TimeoutError, aiohttp.ClientError, OSError):
            response.close()

    def _unreachable(self, error: aiohttp.ClientConnectorError) -> str:
        cause = error.os_error
        text = cause.strerror or str(cause)
        if isinstance(cause, AddressNotAllowed):
            return text
        return f"{self._url.host}:{self._url.port} can't be reached: {responses.one_line(text)}"


def _refused_here(error: Exception) -> bool:
    """Whether this server may not push to the address, which trying again doesn't change."""
    return isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, AddressNotAllowed)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """Return the body up to its limit. If there is more, the connection is closed at the end of the request."""
    parts, room = [], MAX_BODY
    while room > 0 and (part := await response.content.read(room)):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)
