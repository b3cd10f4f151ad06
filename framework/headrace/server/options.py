"""Options of a server."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and behavior of a server. Sizes are in bytes, times in seconds.

    Args:
        max_body: the largest request body.
        max_requests: the most concurrent requests, without those that wait for messages. Others get
            503.
        max_requests_per_token: the most concurrent requests of one access token, likewise. Others get 429.
        max_managed: the most concurrent requests of the management API. No token has more than half of these
            places, free places go round the tokens, and others wait.
        max_held: the largest total size of the bodies of concurrent requests. Others get 503.
        body_timeout: the longest wait for the next piece of a body.
        push_allow: networks that push consumers and captured databases may be in though they are not public: CIDRs,
            "private" or "loopback".
        allowed_hosts: hosts under which clients reach the server in addition to loopback, without
            ports. They count while no token protects the server.
        transforms: modules whose functions sources may name as their transform over HTTP. A package allows its
            submodules.
        capture: whether to capture the tables of all sources that no other process captures.

    The rest is for `headrace serve`, which handles the connections itself:

    Args:
        max_connections: the most concurrent connections. Others get 503 and are closed.
        max_head: the largest total size of request line and headers.
        max_headers: the most headers of a request.
        head_timeout: the longest time that request line and headers may take, from their first
            byte, or from the connection's start.
        idle_timeout: after this time without a request a connection is closed.
        write_timeout: after this time without progress in reading a response, its client is
            disconnected.

    These are internal. Tests shorten them:

    Args:
        body_check_interval: the interval at which incoming bodies are checked for their timeout.
        discard_time: how long the rest of a refused request is read and discarded. If the connection
            were closed at once, the response would be lost.
        push_refresh_interval: the interval of the look-up of push consumers, since other servers
            create, change and delete them, too.
    """

    max_body: int = 10_000_000
    max_requests: int = 1000
    max_requests_per_token: int = 250
    max_managed: int = 4
    max_held: int = 256_000_000
    body_timeout: float = 10.0
    push_allow: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    capture: bool = True

    max_connections: int = 10_000
    max_head: int = 32_768
    max_headers: int = 100
    head_timeout: float = 10.0
    idle_timeout: float = 75.0
    write_timeout: float = 30.0

    body_check_interval: float = 0.5
    discard_time: float = 2.0
    push_refresh_interval: float = 2.0
