"""Dialect A: streams and their consumers. Publish, receive, ack, nack and extend."""

from __future__ import annotations

from headrace.server.access.effects import effect
from headrace.server.data_plane.delivery_bodies import encode_deliveries, read_receive
from headrace.server.dialects.operations import Operations
from headrace.server.http import Endpoint, Request, Response


class Streams:
    """The endpoints of dialect A.

    Args:
        operations: does the work.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._verbs: dict[str, Endpoint] = {
            "receive": self.receive,
            "messages": self.receive,
            "ack": self.ack,
            "nack": self.nack,
            "extend": self.extend,
        }

    def find(self, method: str, parts: list[str], *, older: bool = False) -> tuple[Endpoint, tuple[str, ...]] | None:
        """Return the endpoint for the parts of a path from the stream's name on, and the names in it. `older`: of the API
        under `/api`."""
        if len(parts) == 2 and parts[1] == "messages" and method == "POST":
            return self.publish_received if older else self.publish, (parts[0],)
        if (
            len(parts) == 4
            and parts[1] == "consumers"
            and (method == "POST" or (method, parts[3]) == ("GET", "receive"))
        ):
            endpoint = self._verbs.get(parts[3])
            return None if endpoint is None else (endpoint, (parts[0], parts[2]))
        return None

    @effect("publish")
    async def publish(self, request: Request) -> Response:
        """`POST …/streams/{s}/messages`."""
        return await self._published(request)

    @effect("publish")
    async def publish_received(self, request: Request) -> Response:
        """`POST /api/streams/{s}/messages`. Its messages may have all fields of received ones."""
        return await self._published(request, received=True)

    async def _published(self, request: Request, *, received: bool = False) -> Response:
        stream = await self._operations.stream(request, "publish")
        count = await self._operations.publish(request, stream, received=received)
        return _published(count)

    @effect("publish")
    async def publish_to_streams(self, request: Request) -> Response:
        """`POST …/messages`."""
        return _published(await self._operations.publish_to_streams(request))

    @effect("deliver")
    async def receive(self, request: Request) -> Response | None:
        """`GET` or `POST …/consumers/{c}/receive`, and `POST …/consumers/{c}/messages`."""
        consumer = await self._operations.consumer(request)
        share = await self._operations.receive(request, consumer, read_receive(request.body, request.query_string))
        return None if share is None else Response(200, encode_deliveries(share))

    @effect("deliver")
    async def ack(self, request: Request) -> Response:
        """`POST …/consumers/{c}/ack`."""
        return await self._operations.ack(request, self._operations.consumer)

    @effect("deliver")
    async def nack(self, request: Request) -> Response:
        """`POST …/consumers/{c}/nack`."""
        return await self._operations.nack(request, self._operations.consumer)

    @effect("deliver")
    async def extend(self, request: Request) -> Response:
        """`POST …/consumers/{c}/extend`."""
        return await self._operations.extend(request, self._operations.consumer)


def _published(count: int) -> Response:
    return Response(200, b'{"data":{"published":%d}}' % count)
