"""Dialect B: pull consumers by name, for captured changes.

`…/http_pull_consumers/{name}/receive` by GET and POST, and `ack` and `nack` by POST. The oldest
clients of this dialect call the same under `…/consumers/{id}/`.
"""

from __future__ import annotations

from headrace.server.access.effects import effect
from headrace.server.data_plane.delivery_bodies import read_receive
from headrace.server.dialects.operations import Operations
from headrace.server.http import Endpoint, Request, Response
from headrace.server.wire.dialect_answers import changes

PREFIXES = ("http_pull_consumers", "consumers")


class Pull:
    """The endpoints of dialect B.

    Args:
        operations: does the work.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def find(self, method: str, verb: str) -> Endpoint | None:
        """Return the endpoint for the part of the path after the consumer's name."""
        if verb == "receive" and method in ("GET", "POST"):
            return self.receive
        if method == "POST":
            return {"ack": self.ack, "nack": self.nack}.get(verb)
        return None

    @effect("deliver")
    async def receive(self, request: Request) -> Response | None:
        """Return messages as changes or rows. It takes `batch_size` and `wait_for` like dialect A. Clients that send
        `max_batch_size` look for the parts of a change in `data`."""
        consumer = await self._operations.consumer_anywhere(request)
        share = await self._operations.receive(request, consumer, read_receive(request.body, request.query_string))
        if share is None:
            return None
        later = b"max_batch_size" in request.query_string or b"max_batch_size" in request.body
        return Response(200, changes(consumer, share, in_data=later))

    @effect("deliver")
    async def ack(self, request: Request) -> Response:
        """Settle messages as done."""
        return await self._operations.ack(request, self._operations.consumer_anywhere)

    @effect("deliver")
    async def nack(self, request: Request) -> Response:
        """Settle messages as failed. They are delivered again."""
        return await self._operations.nack(request, self._operations.consumer_anywhere)
