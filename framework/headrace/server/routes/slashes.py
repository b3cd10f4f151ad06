"""Slashes in names. A key or a consumer's name may hold one, written %2F in a path; routes must not part there.

Half of a surrogate pair stands for it while Litestar finds the route: no text in UTF-8 decodes to that.
"""

from __future__ import annotations

from urllib.parse import unquote

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

_MARK = "\udc2f"


def unmarked(text: str) -> str:
    """The text as it was meant."""
    return text.replace(_MARK, "/")


def marking(app: ASGIApp) -> ASGIApp:
    """The application, given paths in which slashes that are part of a name are marked."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") if scope["type"] == ScopeType.HTTP else None
        if raw and b"%2f" in raw.lower():
            scope = _marked(scope, raw)
        await app(scope, receive, send)

    return marked


def _marked(scope: Scope, raw: bytes) -> Scope:
    steps = raw.partition(b"?")[0].decode("latin-1").split("/")
    path = "/".join(unquote(step).replace("/", _MARK) for step in steps)
    place = scope["path"]
    if not unmarked(path).endswith(place):  # some other application has changed the path, and then it knows best
        return scope
    return {**scope, "path": path[len(path) - len(place) :]}  # type: ignore[return-value]
