"""What whoever runs a server may choose."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a server behaves. Sizes are in bytes, times in seconds.

    Args:
        max_body: the largest body of a request.
        max_requests: how many requests may be under way at a time, those that wait for messages apart; then it is 503.
        max_held: how large the bodies of the requests under way may be together; then it is 503.
        body_timeout: how long each next piece of a body may take to come.
        push_allow: where push consumers may send to though it is not public: CIDRs, "private" or "loopback".
        capture: whether to capture the tables of all sources that no other process captures.

    The rest is for `headrace serve`, which has the connections in its hands:

    Args:
        max_connections: how many connections there may be at a time; one more is told 503 and closed.
        max_head: the largest request line and headers, together ...
        max_headers: ... and the most headers.
        head_timeout: how long they may take to come, from the first byte on, or from when a connection is made.
        idle_timeout: after which a connection is closed on which nothing comes any more.
        write_timeout: how long a client may leave an answer untouched.
    """

    max_body: int = 10_000_000
    max_requests: int = 1000
    max_held: int = 256_000_000
    body_timeout: float = 10.0
    push_allow: tuple[str, ...] = ()
    capture: bool = True

    max_connections: int = 10_000
    max_head: int = 32_768
    max_headers: int = 100
    head_timeout: float = 10.0
    idle_timeout: float = 75.0
    write_timeout: float = 30.0
