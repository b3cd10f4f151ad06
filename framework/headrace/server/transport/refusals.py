"""What a connection refuses before a request begins, and the response to it."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace.server.errors import RETRY_AFTER, Problem, error_response
from headrace.server.http import PROTECTION


def last_response(problem: Problem) -> bytes:
    """Return the response to what is refused. It ends the connection."""
    response = error_response(problem)
    return b"".join((
        STATUS_LINE[response.status],
        b"content-type: application/json\r\nconnection: close\r\n",
        b"content-length: %d\r\n" % len(response.body),
        *(b"%b: %b\r\n" % header for header in (*PROTECTION, *response.headers)),
        b"\r\n",
        response.body,
    ))  # fmt: skip


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
    return Problem(
        503, "too_many_connections", f"The server has {limit:,} connections, which is its limit. Try again in a moment.",
        headers={"retry-after": RETRY_AFTER},
    )  # fmt: skip
