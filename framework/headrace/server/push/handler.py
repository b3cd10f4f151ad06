"""The handler of a push consumer. It sends the POST requests and evaluates the responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

import msgspec

from headrace.model.errors import LeaseLost
from headrace.model.outcomes import Release, Retry
from headrace.model.push import Push
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message, lease_time
from headrace.server.push import responses
from headrace.server.push.http_client import AddressNotAllowed, PlaceForRequest, PushClient
from headrace.server.push.http_connection import RequestFailed, Response
from headrace.server.push.request_bodies import RequestBodies
from headrace.server.push.signing import RequestSigner
from headrace.server.push.target import Target


class Answered(Protocol):
    """Is called after each request."""

    def __call__(self, *, at: datetime, status: int | None, ms: float, error: str | None, messages: int) -> None: ...


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
        answered: called after each request, with the fields of `AnswerToRecord`.
    """

    def __init__(
        self,
        push: Push,
        bodies: RequestBodies,
        signer: RequestSigner,
        client: PushClient,
        agent: str,
        now: Callable[[], datetime],
        answered: Answered = lambda **_: None,
    ) -> None:
        headers = {name.lower(): value for name, value in push.headers.items()}
        self._target = Target.of(push.url, {"content-type": "application/json", "user-agent": agent, **headers})
        self._seconds = push.timeout
        self._bodies = bodies
        self._signer = signer
        self._client = client
        self._now = now
        self._answered = answered

    async def send_message(self, message: Message) -> Retry | None:
        """The handler of a consumer that sends single messages."""
        failure = await self._send((message,), self._bodies.one(message))
        return None if failure is None else Retry(failure.reason, after=failure.after)

    async def send_batch(self, batch: Batch) -> None:
        """The handler of a consumer that sends batches. A batch is acked or nacked as a whole."""
        failure = await self._send(batch.messages, self._bodies.many(batch.messages))
        if failure is not None:
            raise BatchFailed(failure.reason, after=failure.after)

    async def _send(self, messages: tuple[Message, ...], body: bytes) -> DeliveryFailure | None:
        async with PlaceForRequest(self._client, self._seconds) as place:
            if not place:
                raise Unsent(f"None of the consumer's connections became free within {self._seconds:g} s")
            now = self._now()
            headers = self._signer.headers(
                self._signer.id([message.seq for message in messages]), int(now.timestamp()), body
            )
            return await self._recorded(self._target.request(headers, body), now, messages)

    async def _recorded(self, request: bytes, now: datetime, messages: tuple[Message, ...]) -> DeliveryFailure | None:
        """Send a request and record the answer. One that is cut off when the process ends is not recorded."""
        clock = asyncio.get_running_loop().time
        began = clock()
        status, error = None, None
        try:
            status, failure = await self._post(request, now, messages)
        except Unsent as unsent:
            self._answered(
                at=now, status=None, ms=(clock() - began) * 1000, error=str(unsent), messages=len(messages)
            )  # public: of the endpoint
            raise
        if failure is not None:  # without the body of the answer, which may repeat a message
            error = failure.reason if status is None else f"The endpoint responded with {status}."
        self._answered(at=now, status=status, ms=(clock() - began) * 1000, error=error, messages=len(messages))
        return failure

    async def _post(
        self, request: bytes, now: datetime, messages: tuple[Message, ...]
    ) -> tuple[int | None, DeliveryFailure | None]:
        """Return the status of the answer, None without one, and the failure if it is one."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._seconds
        connection = self._client.idle()
        if connection is None:
            try:
                async with asyncio.timeout_at(until):
                    connection = await self._client.connect(self._target)
            except (OSError, ValueError) as error:
                return None, self._unconnected(error)
        try:
            lease_time(messages)
        except LeaseLost:
            self._client.give_back(connection)
            raise
        try:
            response = await connection.post(request, until - clock())
        except TimeoutError:
            return None, DeliveryFailure(f"The endpoint did not respond within {self._seconds:g} s")
        except RequestFailed as error:
            return None, DeliveryFailure(
                f"The request failed: {responses.one_line(str(error))}"
            )  # public: of the endpoint
        self._client.give_back(connection)
        return response.status, None if responses.is_ack(response.status) else _failure(response, now)

    def _unconnected(self, error: OSError | ValueError) -> DeliveryFailure:
        """Return why the target can't be connected to, if trying again doesn't change it. Raises `Unsent` otherwise."""
        if isinstance(error, AddressNotAllowed):
            return DeliveryFailure(str(error))  # public: of the endpoint
        reason = responses.one_line(getattr(error, "strerror", None) or str(error))  # public: of the endpoint
        if isinstance(error, ValueError):
            return DeliveryFailure(f"The request failed: {reason}")
        if isinstance(error, TimeoutError) and error.errno is None:
            raise Unsent(f"The endpoint did not accept a connection within {self._seconds:g} s", after=UNSENT_DELAY)
        raise Unsent(f"{self._target.host}:{self._target.port} can't be reached: {reason}", after=UNSENT_DELAY)


def _failure(response: Response, now: datetime) -> DeliveryFailure:
    status, headers = response.status, response.headers
    return DeliveryFailure(
        responses.reason(status, response.phrase, headers, response.body), responses.wait(status, headers, now)
    )
