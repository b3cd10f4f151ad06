"""Serving of the console: its page, its static files, and the way to it from `/`.

The page is one shell for every view. It contains no data, so it needs no token and is given to everyone. Its data
comes from the API, with the access of the user.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.metadata import version
from urllib.parse import quote

import msgspec

from headrace.server.console.files import SCRIPT, StaticFile, static_files
from headrace.server.errors import error_response, only_reads
from headrace.server.http import NO_STORE, Scope, Send

HOME = "/console"
_STATIC = f"{HOME}/static/"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self';"
    " base-uri 'self'; frame-ancestors 'none'"
)
"""The content security policy of the page. It runs and loads nothing but files of this server."""

_PROTECTION = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)

_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")

_SHELL = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Headrace</title>
<base href="{base}">
<link rel="icon" href="{files}icon.svg">
<script src="{files}early.js"></script>
<script type="module" src="{files}{script}"></script>
<link rel="stylesheet" href="{files}style.css">
</head>
<body data-version="{version}" data-files="{files}">
<noscript>The console needs JavaScript. The same is on the command line: <code>headrace observe</code>.</noscript>
<div id="app"></div>
</body>
</html>
"""


class Page(msgspec.Struct, frozen=True):
    """An answer for a browser: status, headers and body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    async def send(self, send: Send) -> None:
        """Send it."""
        length = () if self.status == 304 else ((b"content-length", b"%d" % len(self.body)),)
        headers = [*self.headers, *length, *_PROTECTION]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def is_console(path: str) -> bool:
    """Return whether a path, below the mount point, is of the console."""
    return path == HOME or path.startswith(f"{HOME}/")


def console_page(scope: Scope, path: str) -> Page | None:
    """Return what answers a request of a browser. None if the request isn't for the console.

    Args:
        path: the path below the mount point, without a slash at its end.
    """
    reads = scope["method"] == "GET"
    if path == "/":
        return _to_home(scope) if reads and _accepts_html(scope["headers"]) else None
    if not is_console(path):
        return None
    if not reads:
        refused = error_response(only_reads(path))
        return Page(refused.status, (*refused.headers, (b"content-type", b"application/json"), NO_STORE), refused.body)
    raw = _raw_path(scope)
    if path == HOME and not raw.endswith("/"):
        return _redirect(f"{raw.rpartition('/')[2]}/")
    if path.startswith(_STATIC):
        return _static(scope["headers"], path.removeprefix(_STATIC))
    return _shell(path, raw)


def _to_home(scope: Scope) -> Page:
    """Redirect to the console, relative to the request. So it is right below any mount point and behind a proxy that
    takes a prefix away."""
    last = _raw_path(scope).rpartition("/")[2]
    return _redirect(f"{last}{HOME}/" if last else f"{HOME[1:]}/")


def _redirect(location: str) -> Page:
    # A first segment with a colon would be a scheme.
    return Page(302, ((b"location", f"./{location}".encode()), NO_STORE))


def _shell(path: str, raw: str) -> Page:
    """Return the page. Its base leads back to the console's root, from however deep a path. It is relative, so that the
    page needs to know neither the mount point nor the prefix of a proxy."""
    depth = path.count("/") - 1 + (raw.endswith("/") and not path.endswith("/"))
    found = static_files()
    folder = f"static/{found.version}/"
    body = _SHELL.format(
        base="../" * (depth - 1) or "./", files=folder, script=SCRIPT, version=escape(version("headrace"))
    )
    return Page(200, ((b"content-type", b"text/html; charset=utf-8"), NO_STORE), body.encode())


def _static(headers: Iterable[tuple[bytes, bytes]], rest: str) -> Page:
    wanted, _, name = rest.partition("/")
    found = static_files()
    file = found.by_path.get(name)
    if file is None:
        return Page(404, ((b"content-type", b"text/plain; charset=utf-8"), NO_STORE), b"There is no such file.\n")
    # A page of another version, during an upgrade of several servers, gets this server's file and doesn't keep it.
    kept = _FOREVER if wanted == found.version else (b"cache-control", b"no-cache")
    return _file(headers, file, kept)


def _file(headers: Iterable[tuple[bytes, bytes]], file: StaticFile, kept: tuple[bytes, bytes]) -> Page:
    given = dict(headers)
    shared = ((b"etag", file.etag), kept, (b"vary", b"accept-encoding"))
    if file.etag in given.get(b"if-none-match", b""):
        return Page(304, shared)
    content_type = (b"content-type", file.content_type)
    if file.compressed is not None and b"gzip" in given.get(b"accept-encoding", b""):
        return Page(200, (content_type, *shared, (b"content-encoding", b"gzip")), file.compressed)
    return Page(200, (content_type, *shared), file.content)


def _accepts_html(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a browser asks for a page. API clients accept JSON or anything."""
    return any(name == b"accept" and b"text/html" in value for name, value in headers)


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return raw.partition(b"?")[0].decode("latin-1")
