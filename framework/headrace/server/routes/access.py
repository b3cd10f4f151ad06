"""Access checks and look-ups that the routes of the management plane share."""

from __future__ import annotations

from typing import Any

from litestar import Request

from headrace.admin import Admin
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.server.access.scopes import Access, Need
from headrace.server.data_plane.reading import Reading
from headrace.server.data_plane.registry import KnownConsumer, KnownStream
from headrace.server.engine import Engine
from headrace.server.routes.slashes import unmarked

AnyRequest = Request[Any, Any, Any]


class RouteContext:
    """Checks the caller's access and looks up what a request names.

    Args:
        engine: looks up streams and consumers.
        access: checks tokens.
    """

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self._access = access

    @property
    def admin(self) -> Admin:
        """The administration that does the work."""
        return self.engine.app.admin

    @property
    def reading(self) -> Reading:
        """Reads messages."""
        return Reading(self.engine.app.database)

    async def all(self, request: AnyRequest, need: Need) -> None:
        """Check access for a call that isn't about one stream."""
        await self._access.check(request.headers.get("authorization"), need, None)

    async def named(self, request: AnyRequest, stream: str, need: Need) -> None:
        """Check access for a call about a stream that may not exist yet."""
        await self._access.check(request.headers.get("authorization"), need, stream)

    async def stream(self, request: AnyRequest, ref: str, need: Need) -> KnownStream:
        """Look up a stream by its id or name. A caller without access to all streams gets an
        access error, which doesn't reveal whether the stream exists."""
        try:
            stream = await self.engine.stream(unmarked(ref))
        except UnknownStream:
            await self.all(request, need)
            raise
        await self.named(request, stream.name, need)
        return stream

    async def consumer(self, request: AnyRequest, stream: str, ref: str, need: Need) -> KnownConsumer:
        """Look up a consumer by its id or name."""
        known = await self.stream(request, stream, need)
        return await self.engine.consumer(known.name, unmarked(ref))

    async def consumer_anywhere(self, request: AnyRequest, ref: str, need: Need) -> KnownConsumer:
        """Look up a consumer by its id, its name, or `stream:name`."""
        try:
            consumer = await self.engine.consumer_anywhere(unmarked(ref))
        except (UnknownStream, UnknownConsumer):
            await self.all(request, need)
            raise
        await self.named(request, consumer.stream.name, need)
        return consumer
