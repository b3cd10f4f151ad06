"""Remote administration of a server over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from headrace.client.address import DEFAULT_URL, Server
from headrace.client.call import sent
from headrace.client.calls import (
    CREATE_CONSUMER,
    CREATE_JOB,
    CREATE_STREAM,
    DEAD_LETTERS,
    PEEK,
    PUBLISH,
    PUBLISH_MANY,
    STANDING,
)
from headrace.client.specs import consumer_settings, publish_options, refuse_changes, stream_spec
from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.durations import Duration
from headrace.model.errors import AlreadyExists
from headrace.model.messages.payloads import with_expiry
from headrace.model.messages.publish_options import PublishKeywords, PublishOptions
from headrace.model.pages import Page, follow_states
from headrace.model.records import PEEK_STATES, PeekedMessage, Standing
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.model.watching.operations import Job, JobKind

if TYPE_CHECKING:
    # The methods that `Calls` makes have the signatures of `Admin`. Importing `Admin` takes long.
    from headrace.admin import Admin as Calls
    from headrace.client.transport import HttpTransport, Transport
else:
    from headrace.client.calls import Calls

__all__ = ["Remote"]


class Remote(Calls):
    """Read and change the streams, consumers, messages, sources and tokens of a server. It has the
    methods of `Admin`, which does the same with a database.

        async with Remote("https://headrace.example.com", token=token) as remote:
            await remote.pause("orders", "ship")

    Args:
        server: its URL, or a `Server`.
        token: sent with each request.
        transport: sends the requests. The default is the standard library's HTTP client in threads.

    Attributes:
        server: the server.
        unavailable: names of databases behind the server that did not answer, so that what lists returned is not complete.
            Each list adds to them. To learn of one list alone, clear the set before it.

    Every method raises what the method of `Admin` raises. It also raises `StoreUnavailable` if the
    server can't be reached, `InDoubt` if the answer is lost, and `ConfigurationError` if the token
    is missing or not sufficient. An answer may take 30 seconds, in addition to the time that the
    call itself waits.
    """

    def __init__(
        self, server: str | Server = DEFAULT_URL, *, token: str | None = None, transport: Transport | None = None
    ) -> None:
        self.server = Server(server, token) if isinstance(server, str) else server
        self.transport = transport or _http(self.server)
        self.unavailable: set[str] = set()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    async def __aenter__(self) -> Remote:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- calls of more than one request

    async def create_stream(self, spec: StreamSpec | str, *, database: str | None = None) -> bool:
        """Create a stream, as `Admin.create_stream` does."""
        spec = StreamSpec(name=spec) if isinstance(spec, str) else spec
        try:
            await CREATE_STREAM.send(self.transport, spec, database=database)
        except AlreadyExists:
            if database is not None and (await self.stream(spec.name)).database != database:
                raise
            existing = msgspec.to_builtins(stream_spec(await self.stream(spec.name)))
            refuse_changes(existing, msgspec.to_builtins(spec), f"The stream {spec.name!r}")
            return False
        return True

    async def create_consumer(self, spec: ConsumerSpec) -> bool:
        """Create a consumer, as `Admin.create_consumer` does."""
        try:
            await CREATE_CONSUMER.send(self.transport, spec.stream, spec)
        except AlreadyExists:
            existing = (await self.consumer(spec.stream, spec.name)).settings
            what = f"The consumer {spec.name!r} of the stream {spec.stream!r}"
            refuse_changes(existing, consumer_settings(spec), what)
            return False
        return True

    async def send(
        self, stream: str, key: str, data: str, headers: str | None = None, **options: Unpack[PublishKeywords]
    ) -> int | None:
        """Publish one message, as `Admin.send` does. Returns None."""
        await PUBLISH.send(
            self.transport, stream, _message(key, data, headers) | publish_options(PublishOptions(**options))
        )
        return None

    async def send_many(
        self,
        stream: str,
        keys: Sequence[str],
        data: Sequence[str],
        headers: Sequence[str | None],
        *,
        expires_in: Duration | None = None,
    ) -> int:
        """Publish messages in order, all or none, as `Admin.send_many` does. At most 10,000."""
        if not keys:
            return 0
        messages = [
            _message(key, text, with_expiry(head, expires_in))
            for key, text, head in zip(keys, data, headers, strict=True)
        ]
        published: int = await PUBLISH_MANY.send(self.transport, stream, messages)
        return published

    async def create_job(self, stream: str, name: str, kind: JobKind, **criteria: Unpack[DeadLetterCriteria]) -> Job:
        """Redrive or purge dead letters in the background, as `Admin.create_job` does."""
        selection = sent({one.name: None for one in DEAD_LETTERS} | criteria, DEAD_LETTERS)
        job: Job = await CREATE_JOB.send(self.transport, kind, stream, name, selection)
        return job

    async def peek(self, stream: str, name: str, *, limit: int = 10, above: int = 0) -> list[PeekedMessage]:
        """Read a consumer's messages without leasing them, as `Admin.peek` does."""

        async def read(after: int, states: Sequence[str] | None) -> Page[PeekedMessage]:
            answer = await PEEK.send(self.transport, stream, name, limit=limit, above=after, states=states)
            return Page(answer.data, more=answer.next is not None)

        return await follow_states(read, PEEK_STATES, after=above, limit=limit)

    async def standing(self, stream: str, key: str) -> tuple[int, list[Standing]] | None:
        """Return the state of a key's latest message in each consumer, as `Admin.standing` does."""
        standings = await STANDING.send(self.transport, stream, key)
        if standings:
            return standings[0].seq, [standing.record() for standing in standings]
        # Either the key has no message, or the stream has no consumers.
        message = None if standings is None else await self.message(stream, key)
        return None if message is None else (message.seq, [])


def _message(key: str, data: str, headers: str | None) -> dict[str, Any]:
    message: dict[str, Any] = {"key": key, "data": msgspec.Raw(data.encode())}
    if headers is not None:
        message["headers"] = msgspec.Raw(headers.encode())
    return message


def _http(server: Server) -> HttpTransport:
    from headrace.client.transport import HttpTransport  # imported late, it would delay `--as-curl` by milliseconds

    return HttpTransport(server)
