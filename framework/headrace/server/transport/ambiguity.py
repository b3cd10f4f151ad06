"""Heads that the server and a proxy before it may read differently, which is how requests are smuggled."""

from __future__ import annotations

from collections.abc import Sequence

import httptools


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
