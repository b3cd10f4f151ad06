"""The one reading of a request's path. All checks and routers get the path that `read_path` returns.

A key or a consumer's name may contain a slash, written %2F in a path, at which routes must not split. Half of a surrogate
pair stands for it. No UTF-8 text decodes to it.
"""

from __future__ import annotations

from urllib.parse import unquote

from headrace.server.errors import Problem
from headrace.server.http import Scope

_MARK = "\udc2f"


def unmarked(text: str) -> str:
    """Return the text with its slashes restored."""
    return text.replace(_MARK, "/")


def read_path(scope: Scope) -> str:
    """Return the path of a request below the mount point, without slashes at its end, and with slashes inside names marked.

    Raises:
        Problem: a step of the path is empty (404). Some programs leave such steps out and others don't, so that a check and
            a router, or a proxy and this server, could read two paths.
    """
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    root = scope.get("root_path", "").rstrip("/")
    # Some frameworks leave the whole path in the scope, and some don't.
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        path = path[len(root) :]
    if b"%2f" in raw.lower():
        path = _marked(path, raw)
    path = path.rstrip("/")
    if "//" in path:
        raise Problem(
            404, "not_found", f"The path {unmarked(path)!r:.200} has an empty step. Leave out one of the slashes."
        )
    return path or "/"


def _marked(path: str, raw: bytes) -> str:
    """Return a decoded path with slashes inside its names marked."""
    steps = raw.partition(b"?")[0].decode("utf-8", "replace").split("/")
    marked = "/".join(unquote(step).replace("/", _MARK) for step in steps)
    for same in (path, path.removesuffix("/"), f"{path}/"):  # some frameworks append a slash, or take one away
        if unmarked(marked).endswith(same):
            return marked[len(marked) - len(same) :]
    return path  # another application has changed the path, so it stays as it is
