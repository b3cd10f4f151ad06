"""Access tokens: what one looks like, and what it opens.

A token is `hr_<id>_<secret>`. The id is no secret: it finds the row that has the digest of the whole. A token has scopes, each of
which is an action alone, for all streams, or for the stream of one name: `consume`, `publish:orders`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Literal, get_args

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import HeadraceError, InvalidInput

Need = Literal["publish", "consume", "admin"]
"""What a scope allows, and what a call needs."""

NEEDS: tuple[Need, ...] = get_args(Need)
MOST_SCOPES = 100

_ALPHABET = string.digits + string.ascii_letters
_ID, _SECRET = 12, 40  # characters, of which each is worth 5.95 bits
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._@-]{0,63}")
_STREAM = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_LONGEST = 100 * 365 * 86400.0


class Unauthorized(HeadraceError):
    """There is no token with the call, or one that opens nothing."""

    exit_code = 78  # EX_CONFIG, as on the command line everything that is wrong with a token


class Forbidden(HeadraceError):
    """The token is good, and lacks the scope that the call needs."""

    exit_code = 78


class UnknownToken(HeadraceError, LookupError):
    """There is no token of that id or name."""

    exit_code = 66  # EX_NOINPUT


class TokenExists(InvalidInput):
    """There is, or was, a token of that name."""


class Minted(msgspec.Struct, frozen=True):
    """A new token. Its `text` is to be shown once, and only its `digest` kept."""

    id: str
    text: str
    digest: bytes


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a token. Its secret isn't."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class NewToken(TokenInfo, frozen=True, kw_only=True):
    """A token that was just made. Nobody can tell `token` a second time."""

    token: str


class StoredToken(TokenInfo, frozen=True, kw_only=True):
    """A token as it is kept: with the digest by which it is recognized."""

    digest: bytes


class Scope(msgspec.Struct, frozen=True):
    """An action, and the stream that it is for; None for all of them."""

    action: Need
    stream: str | None = None

    def __str__(self) -> str:
        return self.action if self.stream is None else f"{self.action}:{self.stream}"


def parse(text: str) -> Scope:
    """The scope that is written there. Raises `InvalidInput` with what would be right."""
    if not isinstance(text, str):
        raise InvalidInput(f"A scope is text such as 'publish:orders', not {type(text).__name__}.")
    action, colon, stream = text.partition(":")
    for need in NEEDS:
        if action == need and not colon:
            return Scope(need)
        if action == need and _STREAM.fullmatch(stream):
            return Scope(need, stream)
    if action in NEEDS:
        raise InvalidInput(
            f"The scope {text[:80]!r} can't be: after the colon comes the name of a stream, which has 1 to 48 lower-case"
            f" letters, digits, '-' and '_'; {action!r} alone is for all streams."
        )
    raise InvalidInput(
        f"The scope {text[:80]!r} can't be: write publish, consume or admin, alone or for one stream as in 'publish:orders'."
    )


def parse_all(texts: Iterable[str]) -> tuple[str, ...]:
    """Scopes as they are kept: checked, each once, in order. Raises `InvalidInput`, also when there is none."""
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
    """Whether one of the scopes, as `parse_all` gives them, opens what a call needs.

    Args:
        stream: the name of the stream that the call is about; None for a call about no one stream, which takes a scope for all.
    """
    if need in scopes or "admin" in scopes:
        return True
    return stream is not None and (f"{need}:{stream}" in scopes or f"admin:{stream}" in scopes)


def check_name(name: str) -> str:
    """The name as it is. Raises `InvalidInput` for what can't be the name of a token."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"The token name {str(name)[:80]!r} can't be used: take 1 to 64 letters, digits, '.', '_', '@' and '-', the first"
            " one a letter or digit."
        )
    return name


def check_lifetime(given: Duration | None) -> float | None:
    """Seconds that a token is good for, None for ever. Raises `InvalidInput` or `ConfigurationError`."""
    if given is None:
        return None
    found = seconds(given, "expires_in")
    if not 0.001 <= found <= _LONGEST:
        raise InvalidInput(
            f"expires_in={given!r} can't be: a token is good for a millisecond to 100 years; leave it out for one that never"
            " expires."
        )
    return found


def mint() -> Minted:
    """A new token, of strong random numbers."""
    token_id = _random(_ID)
    text = f"hr_{token_id}_{_random(_SECRET)}"
    return Minted(token_id, text, digest(text))


def digest(text: str) -> bytes:
    """What is kept of a token, and compared. It is random and long, so nothing slower than SHA-256 is needed."""
    return hashlib.sha256(text.encode()).digest()


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
