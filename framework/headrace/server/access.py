"""Access: who may call what.

A server is open until a token is made, by the command line or by the API. From then on, each call wants one with a scope for it:

| calls | need | about |
| --- | --- | --- |
| publish | `publish` | the stream |
| receive, ack, nack, extend; look at a consumer, its messages, dead letters and blocked keys | `consume` | its stream |
| look at a stream, read its messages, list its consumers | `consume` | the stream |
| make, change, move, pause, resume, replay, redrive, purge, delete | `admin` | the stream |
| republish | `consume` the one stream and `publish` the other | each |
| list all streams or all consumers | `consume` | all |
| webhook sources | `admin` | the stream that they fill |
| sources that capture tables, which read a database by a role of their own; lists of sources and of backfills | `admin` | all |
| tokens, overview, `/metrics` | `admin` | all |

`admin` is `publish` and `consume`, too. No token is wanted by webhooks, which prove themselves by their signatures, by `/health` and
`/ready`, and by the API's description.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Iterable

from headrace import store
from headrace.model.tokens import Forbidden, Need, Unauthorized, allows, digest
from headrace.server.token_cache import Known, TokenCache

__all__ = ["Access", "Forbidden", "Need", "Unauthorized"]

_BEARER = re.compile(r"bearer +(hr_([0-9a-z]{12})_[0-9a-z]{32,64})", re.ASCII | re.IGNORECASE)
_NO_DIGEST = bytes(32)  # of which nobody knows a text
_PREFIXES = ("/v1/", "/api/")
_WEBHOOKS = ("/v1/webhook/", "/api/webhook/")


class Access:
    """Judges calls by their tokens.

    Args:
        database: the open database, asked for at each reading.
        clock: seconds, monotonic.
        date: seconds since 1970, for tokens that expire.
    """

    def __init__(
        self,
        database: Callable[[], store.Database],
        *,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._cache = TokenCache(database, clock)
        self._date = date

    @property
    def open(self) -> bool:
        """Whether any call may pass without `check`: no token was ever made, as of a second ago at most.

        Where that has to be looked up first it is False, and `check` does it.
        """
        return self._cache.surely_none

    async def admit(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Let a request come in, before its body is read or a name in it looked up: it has a good token, whatever for, or wants none.

        So who has none costs little, and learns nothing: neither which streams there are, nor what a body should have been.

        Args:
            path: below where the server is mounted.
            headers: as ASGI has them.

        Raises:
            Unauthorized, StoreUnavailable: as `check`.
        """
        if not self.open and path.startswith(_PREFIXES) and not path.startswith(_WEBHOOKS):
            await self.authenticate(authorization_of(headers))

    async def check(self, authorization: str | None, need: Need, stream: str | None) -> None:
        """Let a call pass, or raise.

        Args:
            authorization: the header of that name.
            need: what the call needs; see the table above.
            stream: the name, not the id, of the stream that it is about; None for a call about no one stream, which takes a scope for all.

        Raises:
            Unauthorized: there is no token, or none that is good.
            Forbidden: the token has no such scope.
            StoreUnavailable: the token is not known here, or hasn't been read for a minute, and the database doesn't answer.
        """
        known = await self.authenticate(authorization)
        if known is not None and not allows(known.scopes, need, stream):
            scopes = f"{need!r}" if stream is None else f"'{need}:{stream}', or {need!r} for all streams"
            raise Forbidden(f"The token {known.name!r} lacks the scope for this call: {scopes}.")

    async def authenticate(self, authorization: str | None) -> Known | None:
        """The token of a call, whatever it may; None while the server is open. For calls whose stream has to be looked up by an id first.

        Raises:
            Unauthorized, StoreUnavailable: as `check`.
        """
        if await self._cache.none():
            return None
        match = _BEARER.fullmatch(authorization or "")
        if match is None:
            raise Unauthorized("This server wants a token: send the header `Authorization: Bearer hr_…`.")
        token, token_id = match.groups()
        known = await self._cache.find(token_id)
        # Compared also when there is none: to judge takes as long either way. To look it up may not, but an id is no secret.
        same = hmac.compare_digest(digest(token), _NO_DIGEST if known is None else known.digest)
        if known is None or not same or known.revoked:
            raise Unauthorized("The token is unknown or revoked: take one that `headrace token add` has made.")
        if known.expires_at <= self._date():
            raise Unauthorized(f"The token {known.name!r} has expired: `headrace token add` makes another.")
        return known

    def changed(self, token_id: str) -> None:
        """This server has made or revoked the token, which counts at once."""
        self._cache.changed(token_id)


def authorization_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The header of that name, of those that ASGI has."""
    return next((str(value, "latin-1") for name, value in headers if name == b"authorization"), None)
