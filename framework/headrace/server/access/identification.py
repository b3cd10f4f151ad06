"""Identification of callers by a session's cookie or a proxy's header, and what protects these from other sites.

A browser sends cookies, and a proxy adds its header, to whatever a web page causes. So such a request must come from the
console itself: a change needs a header that other sites can't send, and the browser's word that its page has this origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import monotonic

import anyio

from headrace import store
from headrace.model.errors import Unauthorized
from headrace.server.access.attempts import Attempts
from headrace.server.access.scopes import API, SIGN_IN, Access, authorization_of, needs_token
from headrace.server.access.sessions import Sessions, cookie, secret_of
from headrace.server.access.token_cache import REFRESH_AFTER
from headrace.server.access.unauthorized import session_ended
from headrace.server.callers import UNCHECKED, Caller
from headrace.server.errors import Problem
from headrace.server.http import Scope
from headrace.server.options import Options
from headrace.server.transport.clients import Clients

IDENTIFICATION = "headrace_identification"
"""Key of the `Identification` in the state of a request's scope."""

CONSOLE_HEADER = b"x-headrace-console"
"""The header that the console sends. A page of another site can't send it without being asked first, and no answer allows
it."""

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_LONGEST_USER = 200
_Headers = Sequence[tuple[bytes, bytes]]


class Identification:
    """Identifies callers that send no token.

    Args:
        access: checks tokens.
        database: returns the open database.
        options: the proxies, and the lifetime of sessions.
    """

    def __init__(self, access: Access, database: Callable[[], store.Database], options: Options) -> None:
        self._access = access
        self._database = database
        self._header = (options.proxy_user_header or "").lower().encode()
        self.clients = Clients(options.proxy_from)
        self._proxy_token = options.proxy_token
        self._proxy_token_id: str | None = None
        self._proxy_token_missed_at = float("-inf")  # it did not exist then
        self.sessions = Sessions(database, options.session_lifetime)
        self.attempts = Attempts(self.clients)

    def knows(self, scope: Scope, path: str) -> bool:
        """Return whether a request needs no place for strangers: no request needs a credential, or it comes with one that
        was valid when it was last read."""
        if self._access.open:
            return True
        if not needs_token(path):
            return False
        headers: _Headers = scope["headers"]
        authorization = next((value for name, value in headers if name == b"authorization"), None)
        if authorization is not None:
            return self._access.knows(str(authorization, "latin-1"))
        if self._header and self.clients.come_through_proxy(scope):
            return any(name == self._header for name, _ in headers)
        secret = secret_of(headers)
        return secret is not None and self.sessions.knows(secret, mount_of(scope))

    async def caller(self, scope: Scope, path: str) -> Caller:
        """Return the caller of a request, before its body is read or a name in it is looked up.

        So a caller without a token costs little, and learns neither which streams exist nor what a body should contain.

        Args:
            path: the path as `read_path` returns it.

        Returns:
            The caller. `UNCHECKED` outside of the API and for signing in, where nothing else is allowed then.

        Raises:
            Problem: a page of another origin may have caused the request (403), the proxy's header is ambiguous (400), or
                too many attempts from this address have failed (429).
            Unauthorized: the token, the session or the proxy's token is missing or not valid.
            StoreUnavailable: that is unknown.
        """
        if not path.startswith(API) or path in SIGN_IN:
            return UNCHECKED
        headers: _Headers = scope["headers"]
        authorization = authorization_of(headers)
        if authorization is None and not self._access.open:
            user, secret = self._proxy_user(scope), secret_of(headers)
            if (user is not None or secret is not None) and not await self._access.is_open():
                require_own_page(scope)
                if user is not None:
                    return await self._access.ambient_caller("proxy", await self._id_of_proxy_token(), user=user)
                return await self._of_session(scope, secret or "", mount_of(scope))
        return await self._access.caller(authorization)

    async def _of_session(self, scope: Scope, secret: str, mount: str) -> Caller:
        # The page of a session that has ended asks with it again.
        new = not self.sessions.has_read(secret, mount)
        async with self.attempts.attempt(scope) if new else nullcontext():
            session = await self.sessions.find(secret, mount)
            if session is None or session.token_id is None:
                raise session_ended()
        return await self._access.ambient_caller("session", session.token_id, expires_at=session.expires_at)

    def _proxy_user(self, scope: Scope) -> str | None:
        """Return the user that a proxy has authenticated. The header counts from the proxies only."""
        if not self._header:
            return None
        given = [value for name, value in scope["headers"] if name == self._header]
        if not given or not self.clients.come_through_proxy(scope):
            return None
        if len(given) > 1:
            raise _ambiguous(self._header, f"{len(given)} times")
        user = str(given[0], "utf-8", "replace").strip()
        if not user:
            return None
        if len(user) > _LONGEST_USER or not user.isprintable():
            raise _ambiguous(self._header, "with a value that is not a name")
        return user

    async def _id_of_proxy_token(self) -> str:
        """Return the id of the proxies' token. A name is never given to another token, unless all are deleted."""
        if self._proxy_token_id is None or await self._access.is_gone(self._proxy_token_id):
            found = None
            if monotonic() >= self._proxy_token_missed_at + REFRESH_AFTER:
                with anyio.fail_after(2.0):
                    found = await store.token_named(self._database(), self._proxy_token or "")
            if found is None:
                if monotonic() >= self._proxy_token_missed_at + REFRESH_AFTER:
                    self._proxy_token_missed_at = monotonic()
                raise Unauthorized(
                    f"The token {self._proxy_token!r} of `--proxy-token` does not exist. Create it with `headrace token add`."
                )
            self._proxy_token_id = found.id
        return self._proxy_token_id


def require_own_page(scope: Scope) -> None:
    """Raise a `Problem` if a page of another origin may have caused a request that carries a cookie or comes through a
    proxy. A change must also prove that the console's own page did."""
    found: dict[bytes, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name, []).append(value.decode("latin-1").strip().lower())
    sites, origins, hosts = (found.get(name, []) for name in (b"sec-fetch-site", b"origin", b"host"))
    safe = scope["method"] in _SAFE
    if any(site != "same-origin" and not (safe and site == "none") for site in sites) or len(sites) > 1:
        raise _cross_origin(f"Sec-Fetch-Site is {sites[0]:.40}")
    if not sites and origins and not (len(origins) == len(hosts) == 1 and _host_of(origins[0]) == hosts[0]):
        raise _cross_origin(f"Origin is {origins[0]:.80}")
    if safe:
        return
    if CONSOLE_HEADER not in found:
        raise _cross_origin("the header X-Headrace-Console is missing")
    if not sites and not origins:
        raise _cross_origin("it has neither Sec-Fetch-Site nor Origin")


def mount_of(scope: Scope) -> str:
    """Return the path at which the server is mounted, `/` at the root."""
    root: str = scope.get("app_root_path") or scope.get("root_path") or ""
    return root.rstrip("/") or "/"


def session_cookie(scope: Scope, secret: str, seconds: float) -> str:
    """Return the `Set-Cookie` header for the browser that sent a request. It is for TLS only if the browser's page came over
    TLS, also where a proxy has ended it."""
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    secure = scope.get("scheme") == "https" or any(value.lower().startswith(b"https://") for value in origins)
    return cookie(secret, mount=mount_of(scope), seconds=seconds, secure=secure)


def _host_of(origin: str) -> str:
    return origin.partition("://")[2]


def _cross_origin(why: str) -> Problem:
    return Problem(
        403,
        "cross_origin",
        f"The request uses a session or a proxy's user, and is not proven to come from the console of this server: {why}. Use a"
        " token in the Authorization header for other clients.",
    )


def _ambiguous(header: bytes, how: str) -> Problem:
    return Problem(
        400, "malformed", f"The proxy has sent the header {header.decode()} {how}. It must replace what clients send."
    )
