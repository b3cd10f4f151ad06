"""Handling of slashes in names. A key or a consumer's name may contain a slash, written %2F in a
path, at which routes must not split.

While Litestar finds the route, half of a surrogate pair stands for the slash. No UTF-8 text decodes
to it.
"""

from __future__ import annotations

from urllib.parse import unquote

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

_MARK = "\udc2f"


def unmarked(text: str) -> str:
    """Return the text with its slashes restored."""
    return text.replace(_MARK, "/")


def marking(app: ASGIApp) -> ASGIApp:
    """Wrap an ASGI application so that it gets paths in which slashes inside names are marked."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") if scope["type"] == ScopeType.HTTP else None
        if raw and b"%2f" in raw.lower():
            scope = marked_scope(scope, raw)
        await app(scope, receive, send)

    return marked


def marked_scope(scope: Scope, raw: bytes) -> Scope:
    """Return the scope with slashes inside the names of its path marked."""
    steps = raw.partition(b"?")[0].decode("latin-1").split("/")
    path = "/".join(unquote(step).replace("/", _MARK) for step in steps)
    place = scope["path"]
    if not unmarked(path).endswith(place):  # another application has changed the path, so it stays as it is
        return scope
    return {**scope, "path": path[len(path) - len(place) :]}  # type: ignore[return-value]
