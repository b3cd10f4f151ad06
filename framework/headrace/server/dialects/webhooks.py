"""Webhook endpoint, `POST …/webhook/{name}`. It verifies, deduplicates and publishes deliveries.

Senders have no tokens. Signatures authenticate them. A source that checks no signature accepts
nothing that a web page of another site may have sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from headrace.model.errors import ERROR_CODES, HeadraceError, UnknownSource, UnknownStream, code_of, public_text
from headrace.model.text.error_text import storable
from headrace.server.access.effects import effect
from headrace.server.access.origins import OriginPolicy
from headrace.server.access.scopes import Access
from headrace.server.background.recent_events import RecentEvents
from headrace.server.decoding.jobs import DeliveryHead, Published
from headrace.server.dialects.webhook_sources import CachedWebhook, WebhookSources
from headrace.server.engine import Engine
from headrace.server.errors import Problem
from headrace.server.http import Endpoint, Request, Response
from headrace.server.slashes import unmarked
from headrace.server.transport import refusals
from headrace.server.transport.incoming_bodies import declared_size
from headrace.server.transport.limits import BodyLimit, Limits
from headrace.sources.webhook import WebhookSpec
from headrace.store import DeliveryToRecord

MAX_UNSIGNED = 1_000_000
"""Largest size in bytes of a delivery that is not signed, unless the source has a `max_body` of its own."""

MAX_REASON = 300
"""Largest number of characters of a recorded reason."""

_SUCCESS = Response(200, b'{"success":true}')
_MAX_NAME = 48


class Webhooks:
    """The endpoint of all webhook sources.

    Args:
        engine: publishes.
        access: knows whether the server is open.
        limits: the limits of bodies.
        origins: finds the requests of web pages.
        events: records deliveries.
        clock: monotonic time in seconds.
        date: seconds since 1970, against which signatures are checked.
    """

    def __init__(
        self, engine: Engine, access: Access, limits: Limits, origins: OriginPolicy | None = None,
        events: RecentEvents | None = None, *, clock: Callable[[], float] = time.monotonic, date: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._access = access
        self._limits = limits
        self._origins = origins or OriginPolicy()
        self._events = events or RecentEvents()
        self._date = date
        self._sources = WebhookSources(lambda: engine.app.database, clock)
        engine.on_clear_caches(self._sources.clear)

    def find(self, method: str, path: str) -> tuple[Endpoint, tuple[str, ...]] | None:
        """Return the endpoint for a path and the source's name in it. None if the path isn't a webhook's."""
        parts = path.split("/")
        if len(parts) != 4 or parts[1] not in ("v1", "api") or parts[2] != "webhook" or not parts[3]:
            return None
        return (self.deliver if method == "POST" else not_by_post), (unmarked(parts[3]),)

    async def expect(self, request: Request) -> BodyLimit:
        """Check the head of a delivery before its body is read. Returns how large the body may be.

        Args:
            request: has no body yet.

        Raises:
            Problem: a web page of another site may have caused it, it is too large, or it is no `POST`.
            UnknownSource, StoreUnavailable.
        """
        if request.scope["method"] != "POST":
            await not_by_post(request)
        source = await self._source_of(request)
        limit = self._limit_of(source.spec)
        record = _Record(self._events, source.id, request, self._date())
        record.bytes = declared_size(request.scope) or 0
        try:
            if source.spec.signature is None:
                await self._check_origin(request)
            if record.bytes > limit.size:
                raise self._limits.refuse(refusals.body_too_large(*limit))
        except Exception as error:
            record.refused(error)
            raise
        return limit

    async def _source_of(self, request: Request) -> CachedWebhook:
        try:
            return await self._sources.find(request.names[0])
        except UnknownSource:
            await self._check_origin(request)  # a page doesn't learn which sources exist
            raise

    def _limit_of(self, spec: WebhookSpec) -> BodyLimit:
        limit = self._limits.body
        size = spec.max_body or (MAX_UNSIGNED if spec.signature is None else limit.size)
        if size >= limit.size:
            return limit
        return BodyLimit(size, f"It is the limit of the source {spec.name!r}, which its `max_body` sets.")

    @effect("unchecked")
    async def deliver(self, request: Request) -> Response:
        """Publish a delivery that was expected. Returns after the commit. A repeated delivery gets the same answer."""
        source = await self._source_of(request)
        record = _Record(self._events, source.id, request, self._date())
        try:
            published = await self._publish(source, request)
        except Exception as error:
            record.refused(error)
            raise
        record.accepted(published)
        return _SUCCESS

    async def _publish(self, source: CachedWebhook, request: Request) -> Published:
        spec = source.spec
        head = DeliveryHead(spec, list(request.headers), request.query_string, self._date())
        caller = self._limits.name_of(request.scope)
        try:
            stream = await self._engine.stream(spec.stream)
            return await self._limits.decoding.publish(caller, request.pieces, self._engine, stream, head)
        except UnknownStream:
            self._engine.clear_caches()  # the stream was deleted, and its source with it
            raise

    async def _check_origin(self, request: Request) -> None:
        violation = self._origins.cross_site(request.scope)
        if violation is None and await self._access.is_open():
            violation = self._origins.foreign_host(request.scope)
        if violation is not None:
            raise violation


class _Record:
    """The record of a delivery, without its contents.

    Attributes:
        bytes: the size of the body.
    """

    def __init__(self, events: RecentEvents, source: UUID, request: Request, now: float) -> None:
        self._events = events
        self._source = source
        self.bytes = sum(map(len, request.pieces))
        client = request.scope.get("client")
        self._remote = None if not client else str(client[0])
        self._at = datetime.fromtimestamp(now, UTC)

    def accepted(self, published: Published) -> None:
        """Record that it was accepted. Of a repeated delivery nothing was published."""
        repeated = None if published.count else "It was published before."
        self._add(200, repeated, published.key, published.message_id)

    def refused(self, error: Exception) -> None:
        """Record why it was refused, in the words of the answer."""
        status = 500
        if isinstance(error, Problem):
            status = error.status
        elif isinstance(error, HeadraceError):
            status = ERROR_CODES[code_of(error)].status
        self._add(status, storable(public_text(error), MAX_REASON), None, None)

    def _add(self, status: int, reason: str | None, key: str | None, message_id: str | None) -> None:
        self._events.delivered(
            DeliveryToRecord(
                source=self._source, at=self._at, status=status, reason=reason, bytes=self.bytes, key=key,
                message_id=message_id, remote=self._remote,
            )
        )  # fmt: skip


@effect("unchecked")
async def not_by_post(request: Request) -> Response:
    """Answer other methods with 405. Some senders try a URL by GET before they use it."""
    raise Problem(
        405,
        "method_not_allowed",
        f"The webhook {request.names[0][:_MAX_NAME]!r} accepts deliveries by POST only. It answers no challenges.",
        headers={"allow": "POST"},
    )
