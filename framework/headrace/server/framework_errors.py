"""Conversion of Litestar's errors into the API's error responses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

import msgspec
from litestar import Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    SerializationException,
    ValidationException,
)

from headrace.model.errors import AlreadyExists, ConfigurationError, InvalidInput
from headrace.server.errors import Problem, error_response
from headrace.server.invalid_fields import field_of, names_of
from headrace.server.routes.context import AnyRequest, litestar_response
from headrace.server.routes.parameters import parameters_of
from headrace.server.slashes import unmarked

BODY = "headrace_body"
"""Key of the request's body in the state of the scope. Errors name its fields."""

_NUL = b"\\u0000"

_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


def error_handler(request: AnyRequest, error: Exception) -> Response[bytes]:
    """Convert an error to a response."""
    return litestar_response(error_response(_problem(request, error)))


def _problem(request: AnyRequest, error: Exception) -> Exception:
    match error:
        case AlreadyExists():
            sent = _sent(request)
            names = [names_of(name) for name in error.differing]
            error.differing = tuple(next((one for one in found if one in sent), found[0]) for found in names)
            return error
        case InvalidInput() | ConfigurationError():
            sent = _sent(request)
            if error.field is None and "NUL" in str(error):  # public: a comparison
                error.field = _field_with_nul(sent)
            error.field = field_of(error, sent, [*_fields(request, ""), *parameters_of(request)])
            return error
        case ValidationException():
            return _invalid(request, error)
        case MethodNotAllowedException():
            methods = (error.headers or {})["allow"].replace("GET", "GET, HEAD")  # HEAD is answered as GET
            return Problem(
                405,
                "method_not_allowed",
                f"{_request_path(request)} does not support {request.method}. Its methods are {methods}.",
                headers={"allow": methods},
            )
        case NotFoundException():
            return Problem(
                404, "not_found", f"The path {_request_path(request)} does not exist. See /docs for the routes."
            )
        case HTTPException() if isinstance(error.__cause__, SerializationException):  # public: of the body
            return Problem(
                400, "malformed", f"The body is not JSON in UTF-8: {_cause(error.__cause__)}."
            )  # public: of the body
        case HTTPException(status_code=status):
            code = HTTPStatus(status).phrase.lower().replace(" ", "_") if status < 500 else "internal"
            return error if status >= 500 else Problem(status, code, f"{error.detail.rstrip('.')}.")
    return error


def _request_path(request: AnyRequest) -> str:
    return unmarked(request.scope["path"])


def _cause(error: BaseException) -> str:
    return str(error.__cause__ or error).rstrip(".")  # public: of the body


def _invalid(request: AnyRequest, error: ValidationException) -> Problem:
    errors: dict[str, list[str]] = {}
    for one in error.extra if isinstance(error.extra, Sequence) else ():
        field, sentence = _field_error(request, one)
        errors.setdefault(field, []).append(sentence)
    first = next((f"{field}: {sentences[0]}" for field, sentences in errors.items()), error.detail)
    return Problem(422, "invalid", f"The request is invalid. {first}", validation_errors=errors or None)


def _field_error(request: AnyRequest, error: Mapping[str, Any]) -> tuple[str, str]:
    """Return the invalid field and what is wrong with it."""
    field, sentence = str(error.get("key", "body")), str(error["message"]).rstrip(".")
    path = "" if field == "data" else field
    if unknown := _UNKNOWN.search(sentence):
        known = ", ".join(_fields(request, path))
        return _joined(path, unknown[1]), "The field does not exist." + (f" The fields are {known}." if known else "")
    if missing := _MISSING.search(sentence):
        return _joined(path, missing[1]), "The field is missing."
    if not path and sentence == "'data'":  # Litestar's message for a missing body
        return "body", "The body is missing. Send a JSON object."
    return path or "body", f"{sentence}."


def _sent(request: AnyRequest) -> dict[str, bytes]:
    """Return the fields and parameters that the request has, with JSON text in which a NUL would be."""
    try:
        body = msgspec.json.decode(request.scope["state"].get(BODY) or b"{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = {}
    parameters = {**request.query_params.dict(), **request.path_params}
    return {name: bytes(value) for name, value in body.items()} | {
        name: _NUL if "\0" in str(value) else b"" for name, value in parameters.items()
    }


def _field_with_nul(sent: Mapping[str, bytes]) -> str | None:
    """Return the field or parameter that has a NUL character."""
    return next((name for name, text in sent.items() if _NUL in text), None)


def _joined(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _fields(request: AnyRequest, path: str) -> list[str]:
    """Return the names of the fields at a path in the body that the route takes."""
    field = request.route_handler.parsed_fn_signature.parameters.get("data")
    struct: Any = None if field is None else _struct(field.annotation)
    for step in re.sub(r"\[[^]]*\]", "", path).split(".") if path else ():
        if struct is None:
            break
        struct = next((_struct(one.type) for one in msgspec.structs.fields(struct) if one.encode_name == step), None)
    return [] if struct is None else [one.encode_name for one in msgspec.structs.fields(struct)]


def _struct(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct in an annotation, which may be optional or a list."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next((struct for inner in get_args(annotation) if (struct := _struct(inner)) is not None), None)
