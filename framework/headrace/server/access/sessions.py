"""Sessions of the console: a random secret in a cookie, whose digest finds a row with the id of a token.

A server remembers a session for two seconds, and for a minute while the database is unavailable, as it does with
tokens. One statement reads all sessions that are in use, so many browsers cost the database no more than one.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie

import anyio
import msgspec

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.model.tokens import digest
from headrace.server.access.token_cache import MAX_AGE, MAX_AGE_IN_OUTAGE, REFRESH_AFTER, TIMEOUT
from headrace.store.catalog.sessions import Session

COOKIE = "headrace_session"
"""The name of the cookie."""

MAX_SESSIONS = 10_000
"""The largest number of sessions that a process remembers, and of secrets that belong to none."""

MAX_TOGETHER = 500
"""The most sessions that one statement reads."""

_SECRET = re.compile(r"hs_[A-Za-z0-9_-]{43}", re.ASCII)


class CachedSession(msgspec.Struct, frozen=True):
    """A session as it was read. `token_id` is None if there is no such session at this mount point."""

    token_id: str | None
    expires_at: float
    read_at: float


_Key = tuple[bytes, str]
"""The digest of a session's secret, and a mount point."""


class Sessions:
    """Makes, finds and ends sessions.

    Args:
        database: returns the open database. It is called at each read.
        lifetime: seconds after which a session ends.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, database: Callable[[], store.Database], lifetime: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._lifetime = lifetime
        self._clock = clock
        self._found: dict[_Key, CachedSession] = {}  # in the order of their reads
        self._missing: dict[_Key, CachedSession] = {}  # apart, since anyone can fill it
        self._used: dict[_Key, None] = {}  # since the last read
        self._waiting: dict[_Key, None] = {}  # for the next read
        self._lock = anyio.Lock()
        self._failed_at = -math.inf

    async def begin(self, token_id: str, mount: str) -> tuple[str, float] | None:
        """Begin a session with a new secret. Returns the secret, and the seconds until it ends. None if the token no
        longer exists, or is revoked or expired."""
        secret = f"hs_{secrets.token_urlsafe(32)}"
        seconds = await store.begin_session(self._database(), digest(secret), token_id, mount, self._lifetime)
        if seconds is None:
            return None
        self._found[digest(secret), mount] = CachedSession(token_id, time.time() + seconds, -math.inf)
        return secret, seconds

    async def end(self, secret: str) -> None:
        """End a session. Other servers apply it within two seconds."""
        found = digest(secret)
        await store.end_session(self._database(), found)
        for key in [key for key in self._found if key[0] == found]:
            del self._found[key]

    def has_read(self, secret: str, mount: str) -> bool:
        """Return whether a secret was looked up before, and with whatever result."""
        key = (digest(secret), mount)
        return key in self._found or key in self._missing

    def knows(self, secret: str, mount: str) -> bool:
        """Return whether a session was valid when it was last read."""
        return (digest(secret), mount) in self._found

    async def find(self, secret: str, mount: str) -> CachedSession | None:
        """Return the session of a secret. None if there is none at this mount point. Raises `StoreUnavailable` if it was
        last read over a minute ago."""
        key = (digest(secret), mount)
        session = self._known(key)
        if session is not None and session.token_id is not None:
            self._used[key] = None
        if session is None or self._clock() - session.read_at >= REFRESH_AFTER:
            session = await self._read_again(key, session)
        return None if session.token_id is None else session

    async def _read_again(self, key: _Key, old: CachedSession | None) -> CachedSession:
        age = math.inf if old is None else self._clock() - old.read_at
        if old is not None and age < MAX_AGE and self._lock.locked():
            return old
        if self._clock() - self._failed_at < REFRESH_AFTER:
            return _still_known(old, age)
        self._waiting[key] = None
        async with self._lock:
            current = self._known(key)
            if current is not None and self._clock() - current.read_at < REFRESH_AFTER:
                return current
            if self._clock() - self._failed_at < REFRESH_AFTER:  # while this request waited
                return _still_known(old, age)
            try:
                return await self._read(key)
            except StoreUnavailable:
                self._failed_at = self._clock()
        return _still_known(old, age)

    async def _read(self, key: _Key) -> CachedSession:
        """Read a session, together with those that other requests wait for, and that were used since the last read."""
        read_at = self._clock()
        used, self._used = self._used, {}
        waiting, self._waiting = self._waiting, {}
        wanted = list({key: None, **waiting, **used})[:MAX_TOGETHER]
        try:
            with anyio.fail_after(TIMEOUT):
                rows = await store.sessions(self._database(), wanted)
        except TimeoutError as error:
            raise StoreUnavailable("The database did not return the session in time. Try again.") from error
        for one in wanted:
            row = rows.get(one)
            if one != key and one not in waiting and one not in self._found:
                continue  # it has ended meanwhile
            self._keep(one, row, read_at)
        session = self._known(key)
        assert session is not None
        return session

    def _known(self, key: _Key) -> CachedSession | None:
        return self._found.get(key) or self._missing.get(key)

    def _keep(self, key: _Key, row: Session | None, read_at: float) -> None:
        self._found.pop(key, None)
        self._missing.pop(key, None)
        kept = self._missing if row is None else self._found
        kept[key] = CachedSession(
            token_id=None if row is None else row.token_id,
            expires_at=0.0 if row is None else row.expires_at.timestamp(),
            read_at=read_at,
        )
        if len(kept) > MAX_SESSIONS:
            del kept[next(iter(kept))]


def _still_known(old: CachedSession | None, age: float) -> CachedSession:
    if old is None or age >= MAX_AGE_IN_OUTAGE:
        raise StoreUnavailable("The database with the sessions does not answer. Try again in a moment.")
    return old


def secret_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the secret of the session in the cookies of a request. None if there is none, or more than one."""
    found: set[str] = set()
    for name, value in headers:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, secret = part.strip().partition("=")
                if key == COOKIE and _SECRET.fullmatch(secret):
                    found.add(secret)
    return found.pop() if len(found) == 1 else None


def cookie(secret: str, *, mount: str, seconds: float, secure: bool) -> str:
    """Return the `Set-Cookie` header of a session. An empty secret and no seconds delete the cookie."""
    made: SimpleCookie = SimpleCookie()
    made[COOKIE] = secret
    attributes = made[COOKIE]
    attributes["httponly"] = True
    attributes["samesite"] = "Strict"
    attributes["max-age"] = int(seconds)
    attributes["secure"] = secure
    try:
        attributes["path"] = mount or "/"
    except CookieError:
        attributes["path"] = "/"
    return attributes.OutputString()
