"""The context of the routes of the management plane: access checks, look-ups, and calls of the endpoints beside
Litestar."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import msgspec
from litestar import Request
from litestar import Response as LitestarResponse
from litestar.di import NamedDependency
from litestar.types import Scope

from headrace.admin import Admin
from headrace.admin.consumers import consumers_page
from headrace.model.errors import UnknownSchedule, UnknownSource, UnknownStream, public_text
from headrace.model.pages import Page, PageRequest
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.schedules import ScheduleInfo
from headrace.model.sources import SourceInfo
from headrace.model.text.masking import masked_push, masked_push_url
from headrace.server.access.scopes import Access, Forbidden, Need
from headrace.server.callers import CALLER, Caller, Identity
from headrace.server.data_plane.registry import CachedConsumer, CachedStream
from headrace.server.dialects.dispatch import DataPlane
from headrace.server.dialects.older import PREFIX
from headrace.server.dialects.webhooks import Webhooks
from headrace.server.engine import Engine
from headrace.server.http import Endpoint, Response
from headrace.server.http import Request as OwnRequest
from headrace.server.live.refreshing import LiveState
from headrace.server.lookups import Lookups
from headrace.server.merging import merged_page, read_all
from headrace.server.options import Options
from headrace.server.slashes import unmarked

READING_LIMIT = 5.0
"""Seconds after which a call that only reads is ended."""

PARTS = "headrace_parts"
"""Key of the `Parts` in the state of a request's scope."""

AnyRequest = Request[Any, Any, Any]


class Parts(msgspec.Struct):
    """The objects of one database that routes need.

    Attributes:
        engine: looks up streams and consumers.
        access: checks tokens.
        data_plane, webhooks: the endpoints that the server dispatches before Litestar does.
        options: the options of the server.
        live: the live state of all databases of the server.
    """

    engine: Engine
    access: Access
    data_plane: DataPlane
    webhooks: Webhooks
    options: Options
    live: LiveState | None = None


class RouteContext:
    """Checks the access of a request's caller and looks up what the request names. Changes are made in the name of the caller.

    Args:
        parts: of the request's database.
        caller: the caller.
        older: whether the request is one of the older API, under `/api`.
    """

    def __init__(self, parts: Parts, caller: Caller, *, older: bool = False) -> None:
        self.older = older
        self.engine = parts.engine
        self.access = parts.access
        self.data_plane = parts.data_plane
        self.webhooks = parts.webhooks
        self.options = parts.options
        self._live = parts.live
        self._caller = caller
        self._lookups = Lookups(parts.engine)

    @staticmethod
    def of(scope: Scope) -> RouteContext:
        """Return the context of a request, from what the server has put into its scope."""
        return RouteContext(scope["state"][PARTS], scope["state"][CALLER], older=scope["path"].startswith(PREFIX))

    @property
    def admin(self) -> Admin:
        """The administration that does the work, in the name of the caller."""
        return self.admin_of(self.engine)

    @property
    def live(self) -> LiveState:
        """The live state of all databases of the server."""
        assert self._live is not None
        return self._live

    async def engine_of(self, database: str | None) -> Engine:
        """The engine of a further database, or of the server's own."""
        further = self.engine.further
        return self.engine if database is None or further is None else await further.engine(database)

    def admin_of(self, engine: Engine) -> Admin:
        """The administration of a database, in the name of the caller."""
        return engine.admin(self._caller.actor)

    @property
    def reading(self) -> Admin:
        """The administration for calls that only read, with a shorter time limit. Data and headers stay undecoded."""
        return Admin(self.engine.app.database, judging=READING_LIMIT, raw=True)

    def located(self, info: StreamInfo) -> StreamInfo:
        """Return a stream with the name of its database, if that is a further one."""
        return located(self.engine, info)

    async def forbidden(self, scopes: str) -> Forbidden:
        """Return the error for a caller whose token lacks the scopes, given as text."""
        return self._caller.forbidden(scopes)

    async def caller(self) -> str | None:
        """Return the name of the caller's token. None if the call needs none."""
        return self._caller.name

    @property
    def identity(self) -> Identity:
        """The caller's own identity, for the caller."""
        return self._caller.identity

    async def check_all_streams(self, need: Need) -> None:
        """Check access for a call that isn't about one stream."""
        self._caller.check(need, None)

    async def check_stream(self, stream: str, need: Need) -> None:
        """Check access for a call about a stream that may not exist yet."""
        self._caller.check(need, stream)

    async def scope(self, need: Need) -> Collection[str] | None:
        """Return the names of the streams for which the caller has the scope. None for all."""
        return self._caller.streams(need)

    async def stream(self, ref: str, need: Need) -> CachedStream:
        """Look up a stream by its id or name, see `Lookups.stream`."""
        return await self._lookups.stream(self._caller, unmarked(ref), need)

    async def neighbour(self, ref: str, need: Need) -> CachedStream:
        """Look up a stream that must be in the same database as another one of the request."""
        try:
            return await self.stream(ref, need)
        except UnknownStream as error:
            further = self.engine.further
            if self.engine.names is None and (further is None or not further.exist):
                raise
            raise UnknownStream(
                f"{public_text(error)} Name one of the same database, since messages are not copied to another one."
            ) from error

    async def streams(self, need: Need) -> list[str]:
        """Return the names of all existing streams for which the caller has the scope."""
        names = self._caller.streams(need)
        if names is None:
            lists, _ = await read_all(self.engine, lambda engine: self.admin_of(engine).streams())
            return sorted({info.name for found in lists for info in found})
        return sorted({stream.name for stream in (await self.engine.streams_named(names)).values()})

    async def consumer(self, stream: str, ref: str, need: Need) -> CachedConsumer:
        """Look up a consumer by its id or name, see `Lookups.consumer`."""
        return await self._lookups.consumer(self._caller, unmarked(stream), unmarked(ref), need)

    async def consumer_anywhere(self, ref: str, need: Need) -> CachedConsumer:
        """Look up a consumer by its id, its name, or `stream:name`, see `Lookups.consumer_anywhere`."""
        return await self._lookups.consumer_anywhere(self._caller, unmarked(ref), need)

    async def consumers(
        self, stream: str | None, asked: PageRequest[tuple[str, str]]
    ) -> tuple[Page[ConsumerInfo], list[str]]:
        """Read a page of the consumers of a stream, or of all streams of all databases, as the caller may see them.

        Returns:
            The page, and the names of the databases that did not answer.
        """

        async def read(engine: Engine, asked: PageRequest[tuple[str, str]]) -> Page[ConsumerInfo]:
            return await consumers_page(self.admin_of(engine), stream, asked)

        consumers, unavailable = await merged_page(
            self.engine,
            read,
            asked,
            kind="stream" if stream is None else None,
            name=lambda info: info.stream,
            place=lambda info: (info.stream, info.name),
        )
        for index, info in enumerate(consumers):
            consumers[index] = await self.visible(info)
        return consumers, unavailable

    async def visible(self, info: ConsumerInfo) -> ConsumerInfo:
        """Return a consumer as the caller may see it. Credentials of a push consumer require `admin` of its stream."""
        push = info.settings["push"]
        if push is None:
            return info
        try:
            await self.check_stream(info.stream, "admin")
        except Forbidden:
            return msgspec.structs.replace(info, settings={**info.settings, "push": masked_push(push)})
        return info

    async def visible_url(self, stream: str, url: str) -> str:
        """Return the URL of a push consumer as the caller may see it, as `visible` does."""
        try:
            await self.check_stream(stream, "admin")
        except Forbidden:
            return masked_push_url(url)
        return url

    async def source(self, ref: str) -> SourceInfo:
        """Look up a source by its id or name. A caller without access to all streams gets the same
        error for a source that doesn't exist and for one that it may not use.

        A webhook requires `admin` of the stream that it fills. A source that captures tables requires
        `admin` of all streams, because its database role may read more than the caller may.
        """
        ref = unmarked(ref)
        streams = await self.scope("admin")
        try:
            source = await self.admin.source(ref)
        except UnknownSource:
            if streams is None:
                raise
        else:
            if streams is None or (source.kind != "postgres" and source.stream in streams):
                return source
        raise self._caller.forbidden(f"'admin' for the stream that the source {ref:.80} fills, or for all streams")

    async def schedule(self, name: str, need: Need) -> ScheduleInfo:
        """Look up a schedule by its name, or `stream:name`. It requires the scope for the stream to which it publishes. A
        caller without access to all streams gets the same error for one that doesn't exist.
        """
        stream, colon, name = unmarked(name).rpartition(":")
        streams = await self.scope(need)
        try:
            schedule = await self.admin.schedule(name)
            if colon and schedule.stream != stream:
                raise UnknownSchedule(f"The stream {stream!r:.80} has no schedule {name!r:.80}.")
        except UnknownSchedule:
            if streams is None:
                raise
        else:
            if streams is None or schedule.stream in streams:
                return schedule
        raise self._caller.forbidden(f"{need!r} for the stream of the schedule {name:.80}, or for all streams")


Context: TypeAlias = NamedDependency[RouteContext]
"""The parameter `context` of a handler."""


def located(engine: Engine, info: StreamInfo) -> StreamInfo:
    """Return a stream with the name of its database, if that is a further one."""
    return info if engine.names is None else msgspec.structs.replace(info, database=engine.names.database)


async def call(request: AnyRequest, endpoint: Endpoint, *names: str) -> LitestarResponse[Any]:
    """Call an endpoint that the server dispatches before Litestar does. `names` are those in the path."""
    pieces, caller = (await request.body(),), request.scope["state"][CALLER]
    own_request = OwnRequest(request.scope, request.receive, tuple(map(unmarked, names)), pieces, caller)  # type: ignore[arg-type]
    response = await endpoint(own_request)
    if response is None:  # the client has disconnected
        return LitestarResponse(b"", status_code=204)
    return litestar_response(response)


def litestar_response(response: Response) -> LitestarResponse[bytes]:
    """Convert a response."""
    headers = {name.decode(): value.decode("latin-1") for name, value in response.headers}
    return LitestarResponse(response.body, status_code=response.status, headers=headers, media_type="application/json")
