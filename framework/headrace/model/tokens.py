"""Access tokens: their format, and what they allow.

A token is `hr_<id>_<secret>`. The id is not secret. It finds the row with the digest of the whole token. A
token has scopes. A scope is an action, such as `consume`, for all streams, or an action and a stream, such
as `publish:orders`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Collection, Iterable
from datetime import datetime
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import AlreadyExists, InvalidInput
from headrace.model.errors import Forbidden as Forbidden
from headrace.model.errors import Unauthorized as Unauthorized
from headrace.model.errors import UnknownToken as UnknownToken
from headrace.model.text.names import NAME as STREAM_NAME

Need = Literal["publish", "consume", "admin"]
"""The action that a scope allows and a call requires."""

NEEDS: tuple[Need, ...] = get_args(Need)
MOST_SCOPES = 100

_ALPHABET = string.digits + string.ascii_letters
_ID, _SECRET = 12, 40  # characters, with 5.95 bits of entropy each
NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._@-]{0,63}")
"""The name of a token."""

_LONGEST = 100 * 365 * 86400.0


TokenExists = AlreadyExists
"""There is, or was, a token with that name."""


class Minted(msgspec.Struct, frozen=True):
    """A new token. Show its `text` once, and store only its `digest`."""

    id: str
    text: str
    digest: bytes


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a token, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class NewToken(TokenInfo, frozen=True, kw_only=True):
    """A token that was just made. `token` can't be retrieved again."""

    token: str


class StoredToken(TokenInfo, frozen=True, kw_only=True):
    """A token as it is stored, with the digest that identifies it."""

    digest: bytes


SCOPE = f"^({'|'.join(NEEDS)})(:{STREAM_NAME.pattern})?$"
"""The pattern of a scope."""


class Scope(msgspec.Struct, frozen=True):
    """An action, and the stream to which it applies. A stream of None means all streams."""

    action: Need
    stream: str | None = None

    def __str__(self) -> str:
        return self.action if self.stream is None else f"{self.action}:{self.stream}"


def parse(text: str) -> Scope:
    """Parse a scope. Raises `InvalidInput`, which explains the format."""
    if not isinstance(text, str):
        raise InvalidInput(f"A scope is text such as 'publish:orders', not {type(text).__name__}.")
    action, colon, stream = text.partition(":")
    for need in NEEDS:
        if action == need and not colon:
            return Scope(need)
        if action == need and STREAM_NAME.fullmatch(stream):
            return Scope(need, stream)
    if action in NEEDS:
        raise InvalidInput(
            f"The scope {text[:80]!r} is invalid: after the colon comes the name of a stream, which has 1 to 48 lower-case"
            f" letters, digits, '-' and '_'; {action!r} alone is for all streams."
        )
    raise InvalidInput(
        f"The scope {text[:80]!r} is unknown: write publish, consume or admin, alone or for one stream as in 'publish:orders'."
    )


def parse_all(texts: Iterable[str]) -> tuple[str, ...]:
    """Check scopes and return them sorted, without duplicates. Raises `InvalidInput`, also if there are none."""
    if isinstance(texts, str):
        raise InvalidInput(f"scopes={texts[:80]!r} must be a list, such as ['publish:orders'].")
    scopes = tuple(sorted({str(parse(text)) for text in texts}))
    if not 1 <= len(scopes) <= MOST_SCOPES:
        raise InvalidInput(
            f"A token has 1 to {MOST_SCOPES} scopes, not {len(scopes)}: give it publish, consume or admin, alone or for one"
            " stream as in 'publish:orders'."
        )
    return scopes


def allows(scopes: Collection[str], need: Need, stream: str | None) -> bool:
    """Whether one of the scopes, as `parse_all` returns them, allows a call.

    Args:
        stream: the name of the stream that the call is about. None if it is about no single stream, which
            requires a scope for all.
    """
    if need in scopes or "admin" in scopes:
        return True
    return stream is not None and (f"{need}:{stream}" in scopes or f"admin:{stream}" in scopes)


@lru_cache(10_000)
def streams_of(scopes: frozenset[str], need: Need) -> frozenset[str] | None:
    """The names of the streams for which the scopes, as `parse_all` returns them, allow an action. None for all."""
    if allows(scopes, need, None):
        return None
    actions = (f"{need}:", "admin:")
    return frozenset(scope.partition(":")[2] for scope in scopes if scope.startswith(actions))


def check_name(name: str) -> str:
    """Return the name unchanged. Raises `InvalidInput` if it is not a valid token name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidInput(
            f"The token name {str(name)[:80]!r} can't be used: take 1 to 64 letters, digits, '.', '_', '@' and '-', the first"
            " one a letter or digit."
        )
    return name


def check_lifetime(given: Duration | None) -> float | None:
    """The lifetime of a token in seconds, or None if it never expires. Raises `InvalidInput` or
    `ConfigurationError`.
    """
    if given is None:
        return None
    found = seconds(given, "expires_in")
    if not 0.001 <= found <= _LONGEST:
        raise InvalidInput(
            f"expires_in={given!r} is out of range: a token is valid for a millisecond to 100 years; leave it out for one that never"
            " expires."
        )
    return found


def mint() -> Minted:
    """Make a new token from cryptographically strong random numbers."""
    token_id = _random(_ID)
    text = f"hr_{token_id}_{_random(_SECRET)}"
    return Minted(token_id, text, digest(text))


def digest(text: str) -> bytes:
    """The digest of a token, which is stored and compared. Tokens are long and random, so SHA-256 is sufficient."""
    return hashlib.sha256(text.encode()).digest()


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
