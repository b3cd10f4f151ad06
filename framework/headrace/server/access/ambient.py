"""Callers that a request does not name by a token of its own: by the cookie of a session, or by a proxy.

Such a request gets an `Authorization` header inside the server, which all further checks read. It contains a secret of
this server object that never leaves it, so that no client can send one.
"""

from __future__ import annotations

import hmac
import math
import secrets
from datetime import datetime
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

_SCHEME = "Ambient"

Via = Literal["token", "session", "proxy", "open"]
"""How a caller has been identified. `open`: it wasn't, because no token exists."""


class Ambient(msgspec.Struct, frozen=True, kw_only=True):
    """A caller behind a session or a proxy.

    Attributes:
        via: which of them.
        token_id: the token with whose scopes it acts.
        user: its name, if that isn't the token's.
        expires_at: when the session ends, in seconds since 1970, or infinite.
    """

    via: Literal["session", "proxy"]
    token_id: str
    user: str | None = None
    expires_at: float = math.inf


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller is to a server.

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


class AmbientCredentials:
    """Writes and reads the header of such callers. Each server object has a secret of its own."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(32)

    def write(self, ambient: Ambient) -> bytes:
        """Return the value of the header."""
        user = "" if ambient.user is None else quote(ambient.user, safe="")
        parts = (self._secret, ambient.via, ambient.token_id, str(ambient.expires_at), user)
        return f"{_SCHEME} {' '.join(parts)}".encode("ascii")

    def read(self, authorization: str | None) -> Ambient | None:
        """Return what a header says. None if this object has not written it."""
        scheme, _, rest = (authorization or "").partition(" ")
        secret, _, rest = rest.partition(" ")
        if scheme != _SCHEME or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            return None
        via, token_id, expires_at, user = rest.split(" ")
        return Ambient(via=via, token_id=token_id, expires_at=float(expires_at), user=unquote(user) or None)  # type: ignore[arg-type]
