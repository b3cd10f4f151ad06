"""The ASGI application. It applies the limits, dispatches the data plane directly, and passes
everything else to Litestar."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import nullcontext
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

from headrace.app.app import App
from headrace.model.errors import NotConnected, StoreUnavailable
from headrace.server.access.effects import check_effect, effect_of
from headrace.server.access.identification import IDENTIFICATION, Identification
from headrace.server.access.origins import OriginPolicy
from headrace.server.access.scopes import SIGN_IN, Access, needs_token
from headrace.server.callers import CALLER, OPEN, UNCHECKED, Caller
from headrace.server.console.console import console_page, is_console
from headrace.server.databases.data_databases import DataDatabases
from headrace.server.databases.names import DataNames
from headrace.server.databases.plane import Plane
from headrace.server.databases.router import Router
from headrace.server.databases.targets import names_stream, stream_in, target_of
from headrace.server.dialects.older import PREFIX, status_of, without_echoes
from headrace.server.direct import DirectAnswers
from headrace.server.errors import SERVING, Problem, error_response
from headrace.server.framework_errors import BODY
from headrace.server.http import (
    PROTECTION,
    SEND_RESPONSE,
    Endpoint,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    as_get,
    while_connected,
)
from headrace.server.litestar_app import management
from headrace.server.live.pacing import is_poll
from headrace.server.live.refreshing import LiveState
from headrace.server.monitoring.endpoints import PATHS, Monitoring
from headrace.server.options import Options
from headrace.server.routes.context import PARTS
from headrace.server.slashes import read_path
from headrace.server.transport.exchange import Endpoint as ExchangeEndpoint
from headrace.server.transport.exchange import Exchange
from headrace.server.transport.limits import BodyLimit, Limits, replay

MAX_PATHS = 1000
"""The most paths of the data plane whose endpoints are remembered. Each has at most `MAX_TARGET` bytes."""

PATH = "headrace.path"
"""Key in the scope of the path as `read_path` returns it."""

CLIENT_DISCONNECTED = 499
"""Status under which a request is counted if its client disconnected before the answer. It is
the same as in nginx."""


class Server:
    """The HTTP API of an app's database as an ASGI application. Run it alone, or mount it into
    another application.

    It works while the app runs. Put `async with app.running()` around the web server, or into the
    lifespan of the application that it is mounted into.

    Args:
        app: the app.
        options: the limits, the hosts that clients may name, and the networks that push consumers
            may reach. They are those of `headrace serve`.
        access: checks the callers. By default, every call needs a token once a token has been
            created.
    """

    def __init__(self, app: App, options: Options | None = None, access: Access | None = None) -> None:
        self.app = app
        self.options = options or Options()
        self.access = access or Access(lambda: app.database)
        self._origins = OriginPolicy(self.options.allowed_hosts)
        self.identification = Identification(self.access, lambda: app.database, self.options)
        self.limits = Limits(self.options, self._overloaded)
        self._home = Plane(app, self.access, self.limits, self._origins, self.options)
        self.engine, self.data_plane = self._home.engine, self._home.data_plane
        self.push_consumers, self._webhooks = self._home.push_consumers, self._home.webhooks
        self._management = management()
        self._limited = self.limits.around(self._respond, lambda scope: self.identification.knows(scope, scope[PATH]))
        self._direct = DirectAnswers(
            self.engine,
            self.data_plane,
            self.access,
            self.limits,
            self._origins,
            lambda: self._router.exist,
            self._count,
        )
        self.find_endpoint = lru_cache(MAX_PATHS)(self._find_endpoint)
        self.engine.requests = self._request_counts
        self.databases = DataDatabases(
            app, self._data_plane_of, self.options.data_connections, self.options.max_data_connections
        )
        self._router = self.engine.further = Router(self._home, self.databases)
        self.databases.on_changed = self._router.clear
        self.engine.on_clear_caches(self._router.clear)
        app.attach(self.databases)
        app.attach(self.limits.decoding)
        self.live = LiveState(self.engine)
        self._home.parts.live = self.live
        self.monitoring = Monitoring(self.engine, self.access, self.limits, self.databases)
        self.monitoring.health.captures = self._home.captures

    def _data_plane_of(self, app: App, name: str) -> Plane:
        """Make the plane of a further database."""
        plane = Plane(app, self.access, self.limits, self._origins, self.options, name=name)
        plane.engine.names = DataNames(lambda: self.app.database, name)
        plane.parts.live = self.live
        plane.engine.on_clear_caches(self._router.clear)
        return plane

    def end_waits(self) -> None:
        """Answer all requests that wait for messages, and let no others wait."""
        self.engine.end_waits()
        self.databases.end_waits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _acknowledge(receive, send)
        elif scope["type"] != "http":
            await self._management(scope, receive, send)  # type: ignore[arg-type]
        else:
            if scope["method"] == "HEAD":
                scope, send = as_get(scope, send)
            try:
                path = scope[PATH] = read_path(scope)
                await self._check_origin(scope, path)
            except Problem as problem:
                await error_response(problem).send(send)
                return
            if not await self.monitoring.answer(path, scope, send):
                await self._limited(scope, receive, send)

    async def _check_origin(self, scope: Scope, path: str) -> None:
        """Raise a `Problem` for a request that a web page may have caused.

        With tokens there is none, since a page has no token. Webhooks check for themselves, since signatures
        prove most of them. `/health` and the console's page say the same to everyone.
        """
        violation = self._origins.violation(scope)
        if violation is None or path == "/health" or self._webhooks.find(scope["method"], path) is not None:
            return
        if is_console(path) or path == "/":  # the page has no data. Links from elsewhere lead to it
            refuses = scope["method"] != "GET"
        else:
            try:
                refuses = await self.access.is_open()
            except (StoreUnavailable, NotConnected):
                refuses = path not in PATHS  # those report this themselves
        if refuses:
            raise self.limits.refuse(violation)

    def _overloaded(self) -> bool:
        """Return whether calls wait for a connection of the database."""
        try:
            return self.app.database.waiting > 0
        except NotConnected:
            return False

    def _request_counts(self) -> dict[str, int]:
        return {"requests": self.monitoring.requests.count, "in_flight": self.limits.under_way}

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        method, path = scope["method"], scope[PATH]
        plane = self.data_plane.find(method, path)
        found = plane or self._webhooks.find(method, path)
        if found is None and (page := console_page(scope, path)) is not None:
            await page.send(send)
            self.monitoring.requests.add("console", method, page.status, perf_counter() - began)
            return
        if found is None:
            route, status = await self._manage(scope, path, receive, send)
            self.monitoring.requests.add(route, method, status, perf_counter() - began)
            return
        endpoint, names = found
        response: Response | None
        try:
            if plane is None:
                self.limits.admit(scope, None, everyone=self.access.open)
                response = await self._deliver(names, path, scope, receive)
            else:
                caller = await self._admit(scope, path)
                publishes = effect_of(endpoint) == "publish" and names  # others are decoded in this process
                limit = self.limits.body if publishes else self.limits.settling_body
                pieces = await self.limits.read_pieces(scope, receive, limit)
                response = await self._answer(endpoint, Request(scope, receive, names, pieces, caller), path)
        except Exception as error:
            response = error_response(error)
        if response is not None:
            send_response = scope.get(SEND_RESPONSE)  # of Headrace's own web server
            if send_response is None or not send_response(response):
                await response.send(send)
        self._count(endpoint, method, response, began)

    async def _admit(self, scope: Scope, path: str) -> Caller:
        """Identify the caller of a request from its head alone, and count the request for it."""
        caller = await self.identification.caller(scope, path)
        self.limits.admit(scope, caller.name, everyone=self.access.open)
        return caller

    async def _answer(self, endpoint: Endpoint, request: Request, path: str) -> Response | None:
        """Answer a request of the data plane. Raises errors that `error_response` converts."""
        check_effect(effect_of(endpoint), request.caller)
        await self.limits.take_turn(request.scope)
        body = b"" if request.names else request.body  # what names no stream in its path
        plane = await self._plane_of(request.scope["method"], path, body, request.caller)
        if plane is not self._home:
            found = plane.data_plane.find(request.scope["method"], path)
            endpoint = endpoint if found is None else found[0]
        self.data_plane.check_query(endpoint, request)
        return await endpoint(request)

    async def _deliver(self, names: tuple[str, ...], path: str, scope: Scope, receive: Receive) -> Response:
        """Answer the delivery of a webhook. One to an unknown source is refused before its body is read. Raises errors that
        `error_response` converts."""
        plane = await self._plane_of(scope["method"], path, b"", UNCHECKED, webhook=True)
        limit = await plane.webhooks.expect(Request(scope, receive, names, (), UNCHECKED))
        request = Request(scope, receive, names, await self.limits.read_pieces(scope, receive, limit), UNCHECKED)
        await self.limits.take_turn(scope)
        return await plane.webhooks.deliver(request)

    def _count(self, endpoint: Endpoint, method: str, response: Response | None, began: float) -> None:
        status = CLIENT_DISCONNECTED if response is None else response.status
        self.monitoring.requests.add(endpoint.__name__, method, status, perf_counter() - began)

    # --- without ASGI

    def _find_endpoint(self, method: str, path: str) -> ExchangeEndpoint | None:
        """Return what answers requests of the data plane. None for all other requests."""
        found = None if "//" in path else self.data_plane.find(method, path)
        if found is None:
            return None
        return self._direct.endpoint(*found, partial(self._answer_exchange, *found, path))

    async def _answer_exchange(self, endpoint: Endpoint, names: tuple[str, ...], path: str, exchange: Exchange) -> None:
        """Answer a request of the data plane that has arrived in one piece. It passes the same checks as in ASGI."""
        began = perf_counter()
        scope = exchange.scope
        try:
            await self._check_origin(scope, path)
            if not self.identification.knows(scope, path):
                await self.limits.enter_as_stranger(scope)
            self.limits.begin()
        except Exception as error:
            self.limits.leave(scope)
            await exchange.respond(error_response(error))
            return
        try:
            response = await self._answer_within_limits(endpoint, names, path, exchange)
            if response is not None:
                await exchange.respond(response)
        finally:
            self.limits.end(scope)
        self._count(endpoint, scope["method"], response, began)

    async def _answer_within_limits(
        self, endpoint: Endpoint, names: tuple[str, ...], path: str, exchange: Exchange
    ) -> Response | None:
        scope = exchange.scope
        try:
            caller = OPEN if self.access.open else await self._admit(scope, path)
            self.limits.hold_body(scope, exchange.body)
            return await self._answer(endpoint, Request(scope, exchange.receive, names, (exchange.body,), caller), path)
        except Exception as error:
            return error_response(error)

    # --- elsewhere

    async def _plane_of(self, method: str, path: str, body: bytes, caller: Caller, *, webhook: bool = False) -> Plane:
        """Return the plane that answers a request.

        Args:
            body: the body, if it may name the stream.
            webhook: whether it delivers a webhook.
        """
        if not self._router.exist:
            return self._home
        SERVING.set(None)
        target = stream_in(body) if names_stream(method, path) else target_of(path)
        plane = await self._router.plane_of(target, caller, webhook=webhook)
        SERVING.set(plane.name)
        return plane

    def _limit_of(self, path: str) -> BodyLimit | None:
        """Return the largest body of a request that Litestar answers. None if it has no use for one."""
        if path in SIGN_IN:
            return _SIGN_IN_BODY
        if not needs_token(path):  # a page, or none
            return None
        return self.limits.managed_body

    async def _manage(self, scope: Scope, path: str, receive: Receive, send: Send) -> tuple[str, int]:
        """Answer through Litestar. Returns the route's template and the status."""
        status = CLIENT_DISCONNECTED

        async def observe(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = status_of(path, message["status"])
                headers = message.get("headers", ())
                message = {
                    **message,
                    "status": status,
                    "headers": [*(one for one in headers if one not in PROTECTION), *PROTECTION],
                }
            await send(message)

        try:
            caller = await self._admit(scope, path)
            limit = self._limit_of(path)
            body = b"" if limit is None else await self.limits.read_body(scope, receive, limit)
            if path.startswith(PREFIX):
                body = without_echoes(path, body)
            plane = await self._plane_of(scope["method"], path, body, caller)
        except Exception as error:
            await error_response(error).send(observe)
            return "unread", status
        # Keys that an outer application has put into the scope are left out. The path is the one
        # below the mount point.
        inner = {name: scope[name] for name in _SCOPE_KEYS if name in scope}
        inner |= {
            "path": path,
            "root_path": "",
            "app_root_path": scope.get("root_path", ""),
            "state": {BODY: body, PARTS: plane.parts, IDENTIFICATION: self.identification, CALLER: caller},
        }
        reads = scope["method"] == "GET"  # a change continues without its client
        try:
            if reads and is_poll(scope["headers"], path):
                await self.live.pace.turn(self.limits.name_of(scope))
            async with while_connected(receive) if reads else nullcontext(), self.limits.managing(scope):
                await self._management(inner, replay(body, receive), observe)  # type: ignore[arg-type]
        except Problem as problem:  # there is no place, while errors of the management are answered there
            await error_response(problem).send(observe)
        handler = inner.get("route_handler")
        if handler is not None and handler.opt.get("effect") in ("change", "publish"):
            self.live.changed()
        return inner.get("path_template") or "unknown", status


_SIGN_IN_BODY = BodyLimit(4096, "Send a token only.")

_SCOPE_KEYS = (
    "type", "asgi", "http_version", "method", "scheme", "raw_path", "query_string", "headers", "client", "server", "extensions",
)  # fmt: skip


async def _acknowledge(receive: Receive, send: Send) -> None:
    """Acknowledge the start and the end of the web server. All servers of a process share the application of the
    management API, so it is neither started nor stopped by one of them."""
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})
