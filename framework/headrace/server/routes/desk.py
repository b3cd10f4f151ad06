"""What all routes of the management plane go through: who asks, about what, and may he?"""

from __future__ import annotations

from typing import Any

from litestar import Request

from headrace.app.admin import Admin
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.server.access import Access, Need
from headrace.server.directory import KnownConsumer, KnownStream
from headrace.server.engine import Engine
from headrace.server.reading import Reading
from headrace.server.routes.slashes import unmarked

AnyRequest = Request[Any, Any, Any]


class Desk:
    """Finds what a request is about, once it is known that the caller may.

    Args:
        engine: knows the names.
        access: knows who may.
    """

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self._access = access

    @property
    def admin(self) -> Admin:
        """What does the work."""
        return self.engine.app.admin

    @property
    def reading(self) -> Reading:
        """What reads messages."""
        return Reading(self.engine.app.database)

    async def all(self, request: AnyRequest, need: Need) -> None:
        """A call about no one stream."""
        await self._access.check(request.headers.get("authorization"), need, None)

    async def named(self, request: AnyRequest, stream: str, need: Need) -> None:
        """A call about a stream that may not be there yet."""
        await self._access.check(request.headers.get("authorization"), need, stream)

    async def stream(self, request: AnyRequest, ref: str, need: Need) -> KnownStream:
        """A stream by its id or name. Who may not know whether there is one is told that he may not."""
        try:
            stream = await self.engine.stream(unmarked(ref))
        except UnknownStream:
            await self.all(request, need)
            raise
        await self.named(request, stream.name, need)
        return stream

    async def consumer(self, request: AnyRequest, stream: str, ref: str, need: Need) -> KnownConsumer:
        """A consumer by its id or name."""
        known = await self.stream(request, stream, need)
        return await self.engine.consumer(known.name, unmarked(ref))

    async def consumer_anywhere(self, request: AnyRequest, ref: str, need: Need) -> KnownConsumer:
        """A consumer by its id, its name, or `stream:name`."""
        try:
            consumer = await self.engine.consumer_anywhere(unmarked(ref))
        except (UnknownStream, UnknownConsumer):
            await self.all(request, need)
            raise
        await self.named(request, consumer.stream.name, need)
        return consumer
