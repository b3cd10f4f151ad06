"""What whoever runs a server may choose."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a server behaves.

    Args:
        max_body: the largest body of a request, in bytes.
        max_requests: how many requests may be under way at a time, those that wait for messages apart; then it is 503.
        body_timeout: seconds within which each next piece of a body must come.
        push_allow: where push consumers may send to though it is not public: CIDRs, "private" or "loopback".
    """

    max_body: int = 10_000_000
    max_requests: int = 1000
    body_timeout: float = 10.0
    push_allow: tuple[str, ...] = ()
