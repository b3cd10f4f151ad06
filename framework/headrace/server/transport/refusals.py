"""What the limits of connections and requests refuse, and the response of a connection that it ends."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace.server.errors import RETRY_AFTER, Problem, error_response
from headrace.server.http import PROTECTION


def last_response(problem: Problem) -> bytes:
    """Return the response to what is refused. It ends the connection."""
    response = error_response(problem)
    lines = (
        STATUS_LINE[response.status],
        b"content-type: application/json\r\nconnection: close\r\n",
        b"content-length: %d\r\n" % len(response.body),
        *(b"%b: %b\r\n" % header for header in (*PROTECTION, *response.headers)),
        b"\r\n",
        response.body,
    )
    return b"".join(lines)


def malformed(reason: str) -> Problem:
    """A request that is not HTTP, or may mean several things."""
    return Problem(400, "malformed", reason)


def too_many_pipelined(limit: int) -> Problem:
    """More requests than allowed were sent ahead."""
    return malformed(f"The client pipelines too many requests. Send at most {limit} ahead of their responses.")


def too_many_headers(count: int, limit: int) -> Problem:
    """A head with more headers than allowed."""
    return Problem(431, "headers_too_large", f"The request has {count} headers. Send at most {limit}.")


def head_too_large(limit: int) -> Problem:
    """A head of more than `limit` bytes."""
    return Problem(
        431,
        "headers_too_large",
        f"The request line and headers are larger than {limit:,} bytes. Send fewer or shorter headers.",
    )


def head_too_slow(timeout: float) -> Problem:
    """A head that took more than `timeout` seconds."""
    return Problem(408, "too_slow", f"The headers did not arrive within {timeout:g} seconds.")


def too_many_connections(limit: int) -> Problem:
    """A connection above the limit."""
    return _too_many_connections(f"The server has {limit:,} connections, which is its limit. Try again in a moment.")


def too_many_connections_of_address(limit: int) -> Problem:
    """A connection above the limit of its address."""
    return _too_many_connections(
        f"Your address has {limit:,} connections to the server, which is its share of them. Close some. If it is the address of a"
        " proxy, start the server with --proxy-from."
    )


def body_too_large(limit: int, remedy: str) -> Problem:
    """A body of more than `limit` bytes."""
    return Problem(413, "too_large", f"The body is larger than {limit:,} bytes. {remedy}")


def encoded_body(encoding: bytes) -> Problem:
    """A body that is compressed."""
    return Problem(
        415,
        "unsupported_media_type",
        f"The body has the Content-Encoding {encoding.decode('latin-1')!r:.80}, which the server does not decode. Send the JSON as it"
        " is, without this header.",
        headers={"accept-encoding": "identity"},
    )


def body_too_slow(timeout: float) -> Problem:
    """A body that paused for more than `timeout` seconds, or trickled."""
    return Problem(408, "too_slow", f"The body arrived too slowly. Each piece of it may take {timeout:g} seconds.")


def too_many_requests(limit: int) -> Problem:
    """A request above the limit."""
    return _busy(f"The server is processing {limit:,} requests, which is its limit. Try again in a moment.")


def too_many_strangers(limit: int) -> Problem:
    """A request without a known credential, for which no place became free."""
    return _busy(
        f"The {limit:,} places for requests without an access token are in use, or your address has its share of them. Try again"
        " in a moment."
    )


def too_many_managed(limit: int) -> Problem:
    """A request of the management API for which no place became free."""
    return _busy(
        f"The server processes {limit} requests of the management API at the same time, and too many wait. Try again in a moment,"
        " with fewer of them at a time."
    )


def too_many_of_token(name: str, limit: int) -> Problem:
    """A request of a token that has as many under way as it may have."""
    return Problem(
        429,
        "too_many_requests_of_token",
        f"{limit:,} requests with the token {name!r} are under way, which is the limit of one token. Wait for some of the answers.",
        headers={"retry-after": RETRY_AFTER},
    )


def too_many_bytes() -> Problem:
    """A body for which the server, or its share for strangers, has no room."""
    return Problem(
        503,
        "too_much_under_way",
        "The request bodies in progress have reached the server's limit of memory. Try again in a moment.",
        headers={"retry-after": RETRY_AFTER},
    )


def too_many_bytes_of_token(name: str, limit: int) -> Problem:
    """A body for which a token's share has no room."""
    summary = (
        f"The request bodies of the token {name!r} in progress have {limit:,} bytes, which is the limit of one token."
    )
    return Problem(
        429, "too_much_of_token", f"{summary} Wait for some of the answers.", headers={"retry-after": RETRY_AFTER}
    )


def _too_many_connections(summary: str) -> Problem:
    return Problem(503, "too_many_connections", summary, headers={"retry-after": RETRY_AFTER})


def _busy(summary: str) -> Problem:
    return Problem(503, "too_many_requests_under_way", summary, headers={"retry-after": RETRY_AFTER})
