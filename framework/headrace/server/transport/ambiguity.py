"""Heads that the server and a proxy before it may read differently, which is how requests are smuggled."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httptools

_OFFER = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)
_SETTINGS = re.compile(rb"\r\nhttp2-settings:[^\r\n]*(?=\r\n)", re.IGNORECASE)
_CONNECTION = re.compile(rb"(\r\nconnection:)([^\r\n]*)(?=\r\n)", re.IGNORECASE)


def without_offer(data: bytes) -> bytes | None:
    """Return the beginning of a connection's next request without the offer to upgrade to HTTP/2, as some clients make
    it with each first request over http. A server ignores an offer that it doesn't take (RFC 9110, section 7.8).

    The parser takes what follows such an offer for the other protocol, the body as well, while a proxy reads a body. Without
    the offer both read the same.

    Returns:
        None if there is none, if the head has not arrived whole, or if anything but HTTP/2 is offered.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end or len(_OFFER.findall(data, 0, len(head) + 2)) != 1:
        return None
    head = _SETTINGS.sub(b"", _OFFER.sub(b"", head + b"\r\n"))
    return _CONNECTION.sub(_without_names_of_offer, head) + b"\r\n" + rest


def _without_names_of_offer(connection: re.Match[bytes]) -> bytes:
    names = (name.strip() for name in connection[2].split(b","))
    kept = b", ".join(name for name in names if name.lower() not in (b"upgrade", b"http2-settings"))
    return connection[1] + b" " + kept if kept else b""


def ambiguity(parser: httptools.HttpRequestParser, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return why a request must be refused, because a proxy may read it as another one, or as several.

    Args:
        parser: has parsed the head.
        url: the target of the request.
        headers: the headers, with lower-case names.
    """
    version, hosts, codings, body = parser.get_http_version(), [], 0, False
    credentials = 0
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings += 1
            body = True
            if value.strip().lower() != b"chunked" or codings > 1 or version != "1.1":
                return "The only transfer encoding that the server supports is a single `chunked`, in HTTP/1.1."
        elif name == b"authorization":
            credentials += 1
        elif name == b"content-length":
            body = body or value != b"0"
    if version not in ("1.0", "1.1"):
        return f"The HTTP version {version} is not supported on this connection. Use HTTP/1.1."
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return f"The request has {len(hosts) or 'no'} Host headers. Send exactly one."
    if credentials > 1:
        return f"The request has {credentials} Authorization headers. Send exactly one."
    if parser.should_upgrade() and (body or parser.get_method() == b"CONNECT"):
        return (
            "The server supports no other protocol than HTTP/1.1. Leave out the header Upgrade, and don't use CONNECT."
        )
    if url[:1] != b"/":
        scheme, _, rest = url.partition(b"://")
        authority = rest.partition(b"/")[0]
        if scheme.lower() not in (b"http", b"https") or [authority.lower()] != [host.lower() for host in hosts]:
            return (
                "The request's target is not a path on the host of its Host header. Send a target such as /v1/streams."
            )
    return None
