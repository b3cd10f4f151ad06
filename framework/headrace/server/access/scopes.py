"""Access control by tokens and scopes.

A server is open while no token exists. Once one is created, by the command line or by the API, each
call needs a token with a matching scope. Revoked tokens still exist, so only `headrace token open`
on the database, which deletes all tokens, opens the server again.

| calls | scope | for |
| --- | --- | --- |
| publish | `publish` | the stream |
| receive, ack, nack, extend, read a consumer, its messages, dead letters, blocked keys and push answers | `consume` | its stream |
| read and search a stream, read journeys, histories, scheduled messages and jobs, list its consumers, preview a seek | `consume` | the stream |
| create, change, seek, pause, resume, replay, redrive, purge, delete, cancel messages and scheduled ones, create and cancel jobs | `admin` | the stream |
| erase messages, list erased ones | `admin` | the stream |
| republish | `consume` and `publish` | the source stream and the target stream |
| list all streams, consumers or schedules | `consume` | all |
| webhook sources | `admin` | the stream that they fill |
| sources that capture tables with a separate database role, lists of sources and backfills | `admin` | all |
| read a schedule | `consume` | the stream to which it publishes |
| pause, resume, run and delete a schedule | `admin` | the stream to which it publishes |
| live state and samples of a stream and its consumers | `consume` | the stream. Lists and sums cover the streams of the token |
| live state of processes, samples of everything together | `consume` | all |
| live state of sources | `admin` | the stream that they fill, or all for captured tables |
| audit log | `admin` | all. With `admin` of some streams, the entries of these |
| tokens, further databases, `/metrics` | `admin` | all |

`admin` includes `publish` and `consume`. No token is needed for webhooks, which are authenticated
by their signatures, for `/health` and `/ready`, for the console's page, and for the API's description.
"""

from __future__ import annotations

import hmac
import math
import re
import time
from collections.abc import Callable, Iterable
from functools import lru_cache

from headrace import store
from headrace.model.tokens import Forbidden, Need, Unauthorized, digest
from headrace.server.access.token_cache import MAX_TOKENS, TIMEOUT, TokenCache
from headrace.server.access.unauthorized import no_token, session_ended, unknown_token
from headrace.server.callers import OPEN, Caller, Via
from headrace.server.errors import Problem

__all__ = ["Access", "Forbidden", "Need", "Unauthorized"]

_BEARER = re.compile(r"bearer +(hr_([0-9a-z]{12})_[0-9a-z]{32,64})", re.ASCII | re.IGNORECASE)
_NO_DIGEST = bytes(32)  # the digest of no known text


API = ("/v1/", "/api/")
"""The prefixes of the paths of the API."""

SIGN_IN = ("/v1/session", "/api/session")
"""The paths at which a caller signs in and out. They check their callers themselves."""

_WEBHOOKS = ("/v1/webhook/", "/api/webhook/")


def needs_token(path: str) -> bool:
    """Return whether requests for a path, below the mount point, need a token once there are any."""
    return path.startswith(API) and not path.startswith(_WEBHOOKS) and path not in SIGN_IN


class Access:
    """Authenticates and authorizes calls by their tokens.

    Args:
        database: returns the open database. It is called at each read.
        clock: monotonic time in seconds.
        date: seconds since 1970, for the expiry of tokens.
        max_tokens, timeout: see `TokenCache`.
        always_closed: whether calls need a token even if none exists, because other machines can
            reach the server.
    """

    def __init__(
        self,
        database: Callable[[], store.Database],
        *,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
        max_tokens: int = MAX_TOKENS,
        timeout: float = TIMEOUT,
        always_closed: bool = False,
    ) -> None:
        self._always_closed = always_closed
        self._cache = TokenCache(database, clock, max_tokens=max_tokens, timeout=timeout)
        self._date = date

    @property
    def open(self) -> bool:
        """Whether every call may pass without `check`, because no token exists. The information is
        at most a second old.

        It is False while that is unknown. `check` then looks it up.
        """
        return self._cache.known_empty and not self._always_closed

    async def is_open(self) -> bool:
        """Return whether every call may pass, because no token exists. Raises `StoreUnavailable` if
        that is unknown."""
        return not self._always_closed and await self._cache.empty()

    def knows(self, authorization: str | None) -> bool:
        """Return whether a request comes with a token that was valid when it was last read. It asks no database, and takes
        the place of no other check."""
        sent = _sent_token(authorization or "")
        token = None if sent is None else self._cache.last_read(sent[0])
        return (
            sent is not None
            and token is not None
            and hmac.compare_digest(sent[1], token.digest)
            and not token.revoked
            and token.expires_at > self._date()
        )

    async def check(self, authorization: str | None, need: Need, stream: str | None) -> None:
        """Check that a call's token has a scope, see `Caller.check`. Raises as `caller`, and `Forbidden`."""
        (await self.caller(authorization)).check(need, stream)

    async def caller(self, authorization: str | None) -> Caller:
        """Return the caller that an `Authorization` header names.

        Raises:
            Unauthorized: the token is missing or invalid.
            StoreUnavailable: the token isn't cached, or was read more than a minute ago, and the database doesn't answer.
        """
        if self.open:
            return OPEN
        sent = _sent_token(authorization or "")
        if sent is None:
            if await self.is_open():
                return OPEN
            raise no_token()
        token_id, token_digest = sent
        token = await self._cache.find(token_id)
        if token is None and await self.is_open():
            return OPEN
        # Compare even if the token is unknown, so that the comparison takes equally long. The
        # look-up may not, but an id is no secret.
        same = hmac.compare_digest(token_digest, _NO_DIGEST if token is None else token.digest)
        if token is None or not same or token.revoked:
            raise unknown_token()
        if token.expires_at <= self._date():
            raise Unauthorized(f"The token {token.name!r} has expired. Create another with `headrace token add`.")
        return Caller(name=token.name, via="token", scopes=token.scopes, expires_at=token.expires_at)

    async def ambient_caller(
        self, via: Via, token_id: str, *, user: str | None = None, expires_at: float = math.inf
    ) -> Caller:
        """Return the caller behind a session or a proxy.

        Args:
            via: which of them.
            token_id: the token with whose scopes it acts.
            user: its name, if that isn't the token's.
            expires_at: when the session ends, in seconds since 1970, or infinite.

        Raises:
            Unauthorized, StoreUnavailable: as `caller`.
        """
        token = await self._cache.find(token_id)
        if token is None and await self.is_open():
            return OPEN
        if token is None or token.revoked or min(token.expires_at, expires_at) <= self._date():
            if via == "session":
                raise session_ended()
            raise Unauthorized(
                "The token of `--proxy-token` is unknown, expired or revoked. Create one with `headrace token add`."
            )
        return Caller(
            name=user or token.name, via=via, scopes=token.scopes, expires_at=min(token.expires_at, expires_at)
        )

    async def is_gone(self, token_id: str) -> bool:
        """Return whether a token was deleted. Raises `StoreUnavailable` as `check`."""
        return await self._cache.find(token_id) is None

    def changed(self, token_id: str) -> None:
        """Make the creation or revocation of a token by this server effective immediately."""
        self._cache.changed(token_id)


@lru_cache(maxsize=1000)
def _sent_token(authorization: str) -> tuple[str, bytes] | None:
    """Return the id and the digest of the token in an `Authorization` header. None if it has none. Clients send the same one
    again and again."""
    match = _BEARER.fullmatch(authorization)
    return None if match is None else (match[2], digest(match[1]))


def authorization_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the `Authorization` header of ASGI headers.

    Raises:
        Problem: there are several (400). A proxy may have checked another one than the server would.
    """
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) > 1:
        raise Problem(400, "malformed", f"The request has {len(found)} Authorization headers. Send exactly one.")
    return str(found[0], "latin-1") if found else None
