"""Conversion of Litestar's errors into the API's error responses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

import msgspec
from litestar import Request, Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    SerializationException,
    ValidationException,
)

from headrace.server.errors import Problem, reply_of
from headrace.server.routes.slashes import unmarked

_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")

AnyRequest = Request[Any, Any, Any]


def refuse(request: AnyRequest, error: Exception) -> Response[bytes]:
    """Convert an error to a response."""
    reply = reply_of(_problem(request, error))
    headers = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
    return Response(reply.body, status_code=reply.status, headers=headers, media_type="application/json")


def _problem(request: AnyRequest, error: Exception) -> Exception:
    match error:
        case ValidationException():
            return _invalid(request, error)
        case MethodNotAllowedException():
            return Problem(
                405, "method_not_allowed", f"{request.method} can't be done to {_path(request)}.", headers=error.headers
            )
        case NotFoundException():
            return Problem(404, "not_found", f"There is nothing at {_path(request)}: see /docs for what there is.")
        case HTTPException() if isinstance(error.__cause__, SerializationException):
            return Problem(400, "malformed", f"The body is not JSON in UTF-8: {_cause(error.__cause__)}.")
        case HTTPException(status_code=status):
            code = HTTPStatus(status).phrase.lower().replace(" ", "_") if status < 500 else "internal"
            return error if status >= 500 else Problem(status, code, f"{error.detail.rstrip('.')}.")
    return error


def _path(request: AnyRequest) -> str:
    return unmarked(request.scope["path"])


def _cause(error: BaseException) -> str:
    return str(error.__cause__ or error).rstrip(".")


def _invalid(request: AnyRequest, error: ValidationException) -> Problem:
    told: dict[str, list[str]] = {}
    for one in error.extra if isinstance(error.extra, Sequence) else ():
        field, sentence = _explained(request, one)
        told.setdefault(field, []).append(sentence)
    first = next((f"{field}: {sentences[0]}" for field, sentences in told.items()), error.detail)
    return Problem(422, "invalid", f"The request can't be taken. {first}", validation_errors=told or None)


def _explained(request: AnyRequest, error: Mapping[str, Any]) -> tuple[str, str]:
    """Return the invalid field and what is wrong with it."""
    field, sentence = str(error.get("key", "body")), str(error["message"]).rstrip(".")
    place = "" if field == "data" else field
    if unknown := _UNKNOWN.search(sentence):
        known = ", ".join(_fields(request, place))
        return _joined(place, unknown[1]), f"There is no such field{f'; there are {known}' if known else ''}."
    if missing := _MISSING.search(sentence):
        return _joined(place, missing[1]), "It is missing."
    if not place and sentence == "'data'":  # Litestar's message for a missing body
        return "body", "It is missing: send a JSON object."
    return place or "body", f"{sentence}."


def _joined(place: str, field: str) -> str:
    return f"{place}.{field}" if place else field


def _fields(request: AnyRequest, place: str) -> list[str]:
    """Return the names of the fields at a place in the body that the route takes."""
    field = request.route_handler.parsed_fn_signature.parameters.get("data")
    found: Any = None if field is None else _struct(field.annotation)
    for step in re.sub(r"\[[^]]*\]", "", place).split(".") if place else ():
        if found is None:
            break
        found = next((_struct(one.type) for one in msgspec.structs.fields(found) if one.encode_name == step), None)
    return [] if found is None else [one.encode_name for one in msgspec.structs.fields(found)]


def _struct(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct in an annotation, which may be optional or a list."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _struct(inner)) is not None), None)
