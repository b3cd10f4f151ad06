"""A refusal of a server raises the same error as the database's own call."""

from __future__ import annotations

import msgspec
import pytest

from headrace.client.errors import Busy, NotFound, StaleAckIds, error_of
from headrace.model.errors import (
    ERROR_CODES,
    AlreadyExists,
    ConfigurationError,
    Forbidden,
    HeadraceError,
    InvalidInput,
    StoreUnavailable,
    Unauthorized,
)
from headrace.server.errors import Problem, TooManyWaiting, error_response
from headrace.server.errors import StaleAckIds as Stale

URL = "http://server:7376"


def _raised_for(error: Exception) -> HeadraceError:
    """Return the error that a client raises for one that the server's code raised."""
    reply = error_response(error)
    return error_of(URL, reply.status, "reason", reply.body)


_KINDS = [
    code.kind
    for code in ERROR_CODES.values()
    if code.kind is not None and not issubclass(code.kind, (Unauthorized, Forbidden))
]


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_an_error_has_the_same_class_on_both_sides(kind: type[HeadraceError]) -> None:
    raised = _raised_for(kind("It is so."))
    assert type(raised) is kind
    assert (kind.public or "It is so.") in str(raised)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TooManyWaiting("ship", 20), Busy),
        (Problem(503, "too_many_requests_under_way", "Too many requests."), StoreUnavailable),
        (Problem(409, "exists", "There is one."), AlreadyExists),
        (Problem(409, "ambiguous", "Which?"), InvalidInput),
        (Problem(404, "unknown_key", "None."), NotFound),
        (Problem(404, "unknown_dead_letter", "None."), InvalidInput),
        (Problem(413, "too_large", "Too large."), InvalidInput),
        (Problem(422, "invalid", "No."), InvalidInput),
        (Problem(400, "malformed", "No."), InvalidInput),
        (RuntimeError("a bug"), HeadraceError),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_errors_that_only_servers_raise(error: Exception, kind: type[HeadraceError]) -> None:
    assert type(_raised_for(error)) is kind


def test_stale_ack_ids_are_named() -> None:
    raised = _raised_for(Stale(["a", "b"]))
    assert isinstance(raised, StaleAckIds)
    assert raised.stale == ["a", "b"]


@pytest.mark.parametrize("status", [401, 403])
def test_an_unauthorized_client_learns_how_to_pass_a_token(status: int) -> None:
    raised = error_of(URL, status, "", msgspec.json.encode({"summary": "No good.", "code": "x"}))
    assert isinstance(raised, ConfigurationError)
    for words in (URL, "No good.", "--token", "headrace context"):
        assert words in str(raised)


def test_a_server_that_is_away_is_named() -> None:
    assert URL in str(_raised_for(StoreUnavailable("The database is away.")))


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (200, ConfigurationError, "Headrace"),
        (301, ConfigurationError, "redirects"),
        (404, ConfigurationError, "404"),
        (429, Busy, "429"),
        (502, StoreUnavailable, "502"),
        (503, StoreUnavailable, "503"),
        (504, StoreUnavailable, "504"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"detail": "x"}', b"\xff"])
def test_a_server_that_is_not_headrace_is_reported(
    status: int, kind: type[HeadraceError], text: str, body: bytes
) -> None:
    raised = error_of(URL, status, "As it is", body)
    assert type(raised) is kind
    assert text in str(raised)
    assert URL in str(raised)
