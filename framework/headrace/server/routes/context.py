"""What the routes of the management plane share: access checks and look-ups."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request

from headrace.admin import Admin
from headrace.model.errors import UnknownConsumer, UnknownSource, UnknownStream
from headrace.model.masking import masked_push
from headrace.model.records import ConsumerInfo
from headrace.model.sources import SourceInfo
from headrace.server.access.scopes import Access, Forbidden, Need
from headrace.server.data_plane.registry import CachedConsumer, CachedStream
from headrace.server.engine import Engine
from headrace.server.routes.raw_messages import RawMessages
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
        return self.engine.admin

    @property
    def raw_messages(self) -> RawMessages:
        """Reads messages without decoding their JSON."""
        return RawMessages(self.engine.app.database)

    async def check_all_streams(self, request: AnyRequest, need: Need) -> None:
        """Check access for a call that isn't about one stream."""
        await self._access.check(request.headers.get("authorization"), need, None)

    async def check_stream(self, request: AnyRequest, stream: str, need: Need) -> None:
        """Check access for a call about a stream that may not exist yet."""
        await self._access.check(request.headers.get("authorization"), need, stream)

    async def stream(self, request: AnyRequest, ref: str, need: Need) -> CachedStream:
        """Look up a stream by its id or name. A caller without access to all streams gets an
        access error, which doesn't reveal whether the stream exists."""
        try:
            stream = await self.engine.stream(unmarked(ref))
        except UnknownStream:
            await self.check_all_streams(request, need)
            raise
        await self.check_stream(request, stream.name, need)
        return stream

    async def consumer(self, request: AnyRequest, stream: str, ref: str, need: Need) -> CachedConsumer:
        """Look up a consumer by its id or name."""
        found = await self.stream(request, stream, need)
        return await self.engine.consumer(found.name, unmarked(ref))

    async def consumer_anywhere(self, request: AnyRequest, ref: str, need: Need) -> CachedConsumer:
        """Look up a consumer by its id, its name, or `stream:name`."""
        try:
            consumer = await self.engine.consumer_anywhere(unmarked(ref))
        except (UnknownStream, UnknownConsumer):
            await self.check_all_streams(request, need)
            raise
        await self.check_stream(request, consumer.stream.name, need)
        return consumer

    async def visible(self, request: AnyRequest, info: ConsumerInfo) -> ConsumerInfo:
        """Return a consumer as the caller may see it. Credentials of a push consumer require `admin` of its stream."""
        push = info.settings["push"]
        if push is None:
            return info
        try:
            await self.check_stream(request, info.stream, "admin")
        except Forbidden:
            return msgspec.structs.replace(info, settings={**info.settings, "push": masked_push(push)})
        return info

    async def source(self, request: AnyRequest, ref: str) -> SourceInfo:
        """Look up a source by its id or name. A caller without access to all streams gets an access
        error, which doesn't reveal whether the source exists.

        A webhook requires `admin` of the stream that it fills. A source that captures tables requires
        `admin` of all streams, because its database role may read more than the caller may.
        """
        try:
            source = await self.admin.source(unmarked(ref))
        except UnknownSource:
            await self.check_all_streams(request, "admin")
            raise
        if source.kind == "postgres":
            await self.check_all_streams(request, "admin")
        await self.check_stream(request, source.stream, "admin")
        return source
