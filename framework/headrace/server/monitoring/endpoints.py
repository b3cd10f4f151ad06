"""Endpoints for monitoring: `/health` of the process, `/ready` of all that it requires, `/metrics` of its work."""

from __future__ import annotations

import time
from asyncio import gather
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from urllib.parse import parse_qs

import anyio
import msgspec

from headrace import store
from headrace.model.capture import BackfillInfo
from headrace.model.errors import FilterTooSlow, HeadraceError, StoreUnavailable
from headrace.model.records import ConsumerInfo
from headrace.model.sources import SourceInfo
from headrace.server.access.scopes import Access, authorization_of
from headrace.server.databases.data_databases import DataDatabases
from headrace.server.databases.plane import Plane
from headrace.server.engine import Engine
from headrace.server.errors import Problem, error_response, only_reads
from headrace.server.http import PROTECTION, Scope, Send
from headrace.server.merging import reachable
from headrace.server.monitoring.health import DatabaseReadiness, Health
from headrace.server.monitoring.prometheus import Labels, MetricsText, RequestMetrics, consumer_metrics, message_metrics
from headrace.server.monitoring.source_metrics import backfill_metrics, capture_metrics
from headrace.server.query_parameters import check_parameters
from headrace.server.transport.limits import Limits
from headrace.store.database.time_limit import within

PATHS = ("/health", "/ready", "/metrics")

MAX_EXAMINED = 1000
"""Largest number of messages above a consumer's position that are examined to count the pending ones."""

QUERY_TIMEOUT = 2.0
"""Time limit in seconds for counting consumers and for reading sources. Figures that take longer are left out."""

FURTHER_TIMEOUT = 5.0
"""Seconds that a further database has for its figures, also to connect. Otherwise one that is frozen would hold up the
metrics of all."""

CACHE_TTL = 5.0
"""Cache TTL of these figures in seconds."""

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_JSON = b"application/json"

Page = tuple[int, bytes, bytes]
"""A status, a content type and a body."""


class DatabaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures from the database, which are the same for every server."""

    consumers: list[ConsumerInfo] = []
    sources: list[SourceInfo] = []
    backfills: list[BackfillInfo] = []


class Monitoring:
    """Answers the monitoring endpoints. They are not counted among the requests, and no limit
    applies to them.

    Args:
        engine: counts the messages.
        access: checks readers of the metrics, which contain names of streams and consumers. Once
            tokens exist, they need one with `admin` for all streams.
        limits: the limits of the server.
        databases: its further databases.

    Attributes:
        health: the health of the server.
        requests: the request counts of the server.
        further: returns further metrics in the same format, such as the app's own telemetry.
        peer_metrics: returns the metrics of other processes on the same port, with the labels that
            distinguish them.
        labels: the labels that distinguish this process.
    """

    def __init__(self, engine: Engine, access: Access, limits: Limits, databases: DataDatabases | None = None) -> None:
        self._engine = engine
        self._access = access
        self._limits = limits
        self._databases = databases
        self._healths: dict[Plane, Health] = {}
        self.health = Health(engine.app)
        self.requests = RequestMetrics()
        self.further: Callable[[], str] | None = None
        self.peer_metrics: Callable[[], Awaitable[Sequence[tuple[str, Labels]]]] | None = None
        self.labels: Labels = ()
        self._lock = anyio.Lock()
        self._until = float("-inf")
        self._figures = DatabaseFigures()
        self._pages = dict(zip(PATHS, (self._health, self._ready, self._metrics), strict=True))

    async def answer(self, path: str, scope: Scope, send: Send) -> bool:
        """Answer a monitoring request. Returns whether the path is one of `PATHS`."""
        page = self._pages.get(path)
        if page is None:
            return False
        try:
            if scope["method"] != "GET":
                raise only_reads(path)
            status, kind, body = await page(scope)
        except Exception as error:
            await error_response(error).send(send)
            return True
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *PROTECTION]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return True

    async def _health(self, _: Scope) -> Page:
        return 200, _JSON, b'{"status":"ok"}'

    async def _ready(self, scope: Scope) -> Page:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        check_parameters(query, ("exclude",))
        excluded = query.get("exclude", [])
        if unknown := set(excluded) - {"sources"}:
            raise Problem(400, "malformed", f"exclude={min(unknown)!r:.80} is invalid. Only 'sources' can be excluded.")
        found, detailed = await gather(self.health.readiness(sources=not excluded), self._is_admin(scope))
        if detailed and self._databases is not None and (databases := await self._databases_ready()):
            found = msgspec.structs.replace(found, databases=databases)
        body = found if detailed else {"ready": found.ready}  # reasons name the database, sources and tables
        return 200 if found.ready else 503, _JSON, msgspec.json.encode(body)

    async def _databases_ready(self) -> tuple[DatabaseReadiness, ...]:
        """Return the readiness of the further databases, by name."""
        assert self._databases is not None
        healths = {plane: self._healths.get(plane) or Health(plane.app) for plane in self._databases.open.values()}
        self._healths = healths
        states = await gather(*(health.readiness() for health in healths.values()))
        found = [
            DatabaseReadiness(name=plane.name or "", ready=state.ready, reasons=state.reasons)
            for plane, state in zip(healths, states, strict=True)
        ]
        found += [
            DatabaseReadiness(name=name, ready=False, reasons=(reason,))
            for name, reason in self._databases.away.items()
        ]
        return tuple(sorted(found, key=lambda one: one.name))

    async def _is_admin(self, scope: Scope) -> bool:
        """Return whether the caller has `admin` for all streams. False while that can't be found out."""
        try:
            await self._access.check(authorization_of(scope["headers"]), "admin", None)
        except HeadraceError:
            return False
        return True

    async def _metrics(self, scope: Scope) -> Page:
        if not self._access.open:
            await self._access.check(authorization_of(scope["headers"]), "admin", None)
        text = MetricsText()
        text.merge(self.own(), self.labels)
        if self.peer_metrics is not None:
            for peer_text, labels in await self.peer_metrics():
                text.merge(peer_text, labels)
        figures = await self._database_figures()  # the same for all processes, so it is added once
        for family in (
            *consumer_metrics(figures.consumers),
            *capture_metrics(figures.sources),
            *backfill_metrics(figures.backfills),
        ):
            text.add(*family)
        return 200, _TEXT, str(text).encode()

    def own(self) -> str:
        """Return the metrics of this process alone."""
        text, limits = MetricsText(), self._limits
        refused = [("", (("status", str(status)),), count) for status, count in sorted(limits.refused.items())]
        for name, kind, about, samples in (
            (
                "request_duration_seconds",
                "histogram",
                "Duration of requests in seconds, including those that wait for messages.",
                self.requests.samples(),
            ),
            (
                "requests_under_way",
                "gauge",
                "Number of running requests, without those that wait for messages.",
                [("", (), limits.under_way)],
            ),
            ("body_bytes", "gauge", "Size of the bodies of running requests in bytes.", [("", (), limits.held)]),
            (
                "refused_total",
                "counter",
                "Number of requests and connections that a limit refused, by status.",
                refused,
            ),
        ):
            text.add(f"headrace_server_{name}", kind, about, samples)
        counts = Counter(self._engine.statistics())
        for engine in self._further_engines():
            counts.update(engine.statistics())
        for family in message_metrics(counts):
            text.add(*family)
        if self.further is not None:
            text.merge(self.further())
        return str(text)

    async def _database_figures(self) -> DatabaseFigures:
        """Return consumers and sources, at most `CACHE_TTL` seconds old. They are empty while the
        store doesn't answer."""
        async with self._lock:
            if time.monotonic() >= self._until:
                engines = (self._engine, *self._further_engines())
                found = await gather(*(self._figures_of(engine) for engine in engines))
                self._figures = DatabaseFigures(
                    consumers=[consumer for one in found for consumer in one.consumers],
                    sources=[source for one in found for source in one.sources],
                    backfills=[backfill for one in found for backfill in one.backfills],
                )
                self._until = time.monotonic() + CACHE_TTL
            return self._figures

    def _further_engines(self) -> list[Engine]:
        """Return the engines of the further databases that are open."""
        return [] if self._databases is None else [plane.engine for plane in self._databases.open.values()]

    async def _figures_of(self, engine: Engine) -> DatabaseFigures:
        if engine is self._engine:
            return await self._read_figures(engine)
        with anyio.move_on_after(FURTHER_TIMEOUT), suppress(HeadraceError):  # it may be closing, or refuse
            return await self._read_figures(engine)
        return DatabaseFigures()

    async def _read_figures(self, engine: Engine) -> DatabaseFigures:
        sources, backfills = await self._read_sources(engine)
        consumers = await self._read_consumers(engine)
        # Two databases may have the same names, but no two samples the same labels.
        sources = await reachable(engine, "source", sources, lambda one: one.name)
        names = {one.name for one in sources}
        return DatabaseFigures(
            consumers=await reachable(engine, "stream", consumers, lambda one: one.stream),
            sources=sources,
            backfills=[one for one in backfills if engine.names is None or one.source in names],
        )

    async def _read_sources(self, engine: Engine) -> tuple[list[SourceInfo], list[BackfillInfo]]:
        try:
            async with within(engine.app.database, QUERY_TIMEOUT) as connection:
                return await store.sources_at_work(connection)
        except (FilterTooSlow, StoreUnavailable):
            return [], []

    async def _read_consumers(self, engine: Engine) -> list[ConsumerInfo]:
        try:
            return await self._read_consumers_with(engine, MAX_EXAMINED)
        except FilterTooSlow:
            return await self._read_consumers_without_pending(engine)
        except StoreUnavailable:
            return []

    async def _read_consumers_with(self, engine: Engine, look: int) -> list[ConsumerInfo]:
        async with within(engine.app.database, QUERY_TIMEOUT) as connection:
            return await store.consumers(connection, look=look)

    async def _read_consumers_without_pending(self, engine: Engine) -> list[ConsumerInfo]:
        try:
            return await self._read_consumers_with(engine, 0)
        except (FilterTooSlow, StoreUnavailable):
            return []
