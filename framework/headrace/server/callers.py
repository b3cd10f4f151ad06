"""Callers: what a request may do, and in whose name its changes are recorded. Both come from one object, so that neither is
known without the other."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal

import msgspec

from headrace.model.tokens import Forbidden, Need, allows, streams_of
from headrace.model.watching.audit import Actor

CALLER = "headrace_caller"
"""Key of the `Caller` in the state of a request's scope."""

Via = Literal["token", "session", "proxy", "open"]
"""How a caller has been identified. `open`: it wasn't, because no token exists."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A caller, as a server sees it.

    Attributes:
        name: the name of its token, or of the user that a proxy has authenticated.
        via: how it was identified.
        scopes: what it may do.
        expires_at: when this ends. None if it doesn't.
    """

    name: str | None
    via: Via
    scopes: tuple[str, ...]
    expires_at: datetime | None = None


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request.

    Attributes:
        name: the name of its token, or of the user that a proxy has authenticated. None if it isn't known.
        via: how it was identified. None for a caller that an operation checks itself.
        scopes: what it may do.
        expires_at: when this ends, in seconds since 1970, or infinite.
    """

    name: str | None
    via: Via | None
    scopes: frozenset[str]
    expires_at: float = math.inf

    @property
    def ambient(self) -> bool:
        """Whether a browser, or a proxy, adds the credentials to each request, also to one that another site has caused."""
        return self.via in ("session", "proxy")

    @property
    def actor(self) -> Actor:
        """In whose name changes are recorded. Ambient credentials change something from the console's own page only."""
        return Actor(self.name, "console" if self.ambient else "http")

    @property
    def identity(self) -> Identity:
        """The caller's own identity, for the caller."""
        return Identity(
            name=self.name,
            via=self.via or "open",
            scopes=tuple(sorted(self.scopes)),
            expires_at=None if math.isinf(self.expires_at) else datetime.fromtimestamp(self.expires_at, UTC),
        )

    def check(self, need: Need, stream: str | None) -> None:
        """Check that the caller has a scope.

        Args:
            need: the scope that the call needs. See the table in `headrace.server.access.scopes`.
            stream: the name, not the id, of the stream. None for a call that isn't about one stream. It needs a scope for
                all streams.

        Raises:
            Forbidden: the caller lacks the scope.
        """
        if not allows(self.scopes, need, stream):
            raise self.forbidden(f"{need!r}" if stream is None else f"'{need}:{stream}', or {need!r} for all streams")

    def streams(self, need: Need) -> frozenset[str] | None:
        """Return the names of the streams for which the caller has a scope. None for all streams."""
        return streams_of(self.scopes, need)

    def forbidden(self, scopes: str) -> Forbidden:
        """Return the error for a call whose caller lacks the scopes, given as text."""
        name = "" if self.name is None else f" {self.name!r}"
        return Forbidden(f"The token{name} lacks a scope for this call. It needs {scopes}.")


OPEN = Caller(name=None, via="open", scopes=frozenset(("admin",)))
"""Every caller while no token exists."""

UNCHECKED = Caller(name=None, via=None, scopes=frozenset())
"""The caller of what checks its callers itself, or says the same to everyone. It has no scope."""
