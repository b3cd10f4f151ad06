"""The OpenAPI description: what Litestar generates from the routes, with additions, and an HTML
page that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import msgspec
from litestar import Request, get
from litestar.enums import HttpMethod, MediaType
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme, Tag

from headrace.admin.requests.operations import OPERATIONS
from headrace.server.openapi.additions import ANSWERS, EXAMPLES, PATHS
from headrace.server.routes.http_consumers import NewHttpConsumer
from headrace.server.routes.sessions import SignIn
from headrace.server.routes.tokens import TokenRequest
from headrace.server.wire.common import Error
from headrace.server.wire.consumers import ConsumerSettings, NewConsumer
from headrace.server.wire.jobs import NewJob
from headrace.server.wire.messages import Nack, NewMessages, Receive, Republish, Settle
from headrace.server.wire.positions import Seek
from headrace.server.wire.sources import NewSource, SourceSettings
from headrace.server.wire.streams import NewStream, StreamSettings

DESCRIPTION = """\
A durable message stream on Postgres. Publish messages with keys to a stream. Each consumer receives the messages that match its
filters, in order per key, and acks them.

Every route exists under `/v1` and under `/api`. Streams and consumers are given by their ids or names. Lists are
`{"data": […]}`, errors are `{"summary", "code", "validation_errors"?}`.

Once a token was created, every call needs `Authorization: Bearer TOKEN`. Until then, the server takes requests for loopback
hosts and for hosts that it was started with, and refuses those that web pages of other origins cause.
"""

_TAGS = {
    "Streams": "Create and change streams.",
    "Messages": "Publish and read messages.",
    "Consumers": "Create and change consumers, and move their positions.",
    "Delivery": "Receive, ack, nack and extend.",
    "Dead letters": "Read, redrive and delete messages that failed too often.",
    "Jobs": "Redrive and delete many dead letters in the background.",
    "Pull consumers": "Receive and settle by the consumer's name alone, for captured changes.",
    "Consume API": "Consumers, receive and settle for clients of the consume API.",
    "Sources": "Create and change webhooks and captured tables.",
    "Change capture": "Check, pause and resume captures, and backfill and verify tables.",
    "Schedules": "Pause, run and delete the schedules of periodic messages.",
    "Databases": "Add, check and remove further databases, in which streams can live.",
    "Tokens": "Create and revoke access tokens, and sign in to the console.",
    "Audit": "Read which changes were made, and in whose name.",
    "Live": "Watch streams, consumers, sources and processes.",
    "Health": "Endpoints for probes and Prometheus.",
}
_REF = "#/components/schemas/{name}"
_LISTED = re.compile(rb"Listed_[\w.]*?\.?(\w+)_(?=\")")
REQUESTS = (
    ConsumerSettings, Nack, NewConsumer, NewHttpConsumer, NewJob, NewSource, NewStream, Receive, Republish, Seek, Settle,
    SignIn, SourceSettings, StreamSettings, TokenRequest, *{one.body for one in OPERATIONS.values() if one.body is not None},
)  # fmt: skip
"""Types of request bodies."""

_ERRORS_OF_A_BODY = ("400", "413", "415", "422")


class _Json(OpenAPIRenderPlugin):
    """Renders the description as JSON."""

    def __init__(self) -> None:
        super().__init__(path="/", media_type=MediaType.JSON)
        self._completed: dict[str, Any] | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        if self._completed is None:
            self._completed = completed(openapi_schema)
        root = request.scope.get("root_path") or "/"  # the mount point in an outer application
        return msgspec.json.encode({**self._completed, "servers": [{"url": root}]})


def config() -> OpenAPIConfig:
    """Return the configuration with which Litestar describes the routes, at /openapi.json."""
    taken: set[str] = set()

    def operation_id(handler: HTTPRouteHandler, method: HttpMethod, path: list[Any]) -> str:
        name = handler.handler_name + ("_by_put" if method == HttpMethod.PUT else "")
        # Of several paths, which are in no order, the first by name has the handler's name.
        first = [part for part in min(handler.paths).split("/") if part and "{" not in part]
        is_first = [part for part in path if isinstance(part, str)][-len(first) :] == first
        if name in taken or (len(handler.paths) > 1 and not is_first):
            name = f"{name}_{path[-1]}"
        taken.add(name)
        return name

    return OpenAPIConfig(
        title="Headrace",
        version=version("headrace"),
        description=DESCRIPTION,
        path="/openapi.json",
        render_plugins=[_Json()],
        components=Components(
            security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer", description="An access token.")}
        ),
        security=[{"bearer": []}, {}],
        tags=[Tag(name=name, description=text) for name, text in _TAGS.items()],
        use_handler_docstrings=True,
        operation_id_creator=operation_id,  # type: ignore[arg-type]
    )


def pages() -> Sequence[HTTPRouteHandler]:
    """Return the route of the HTML page."""
    page = (files(__package__) / "docs.html").read_text(encoding="utf-8")

    @get("/docs", include_in_schema=False, media_type="text/html")
    async def docs() -> str:
        return page

    return [docs]


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Return the description with its errors, its examples, and the paths that Litestar doesn't serve."""
    found: dict[str, Any] = _plain(msgspec.json.decode(_LISTED.sub(rb"ListOf\1", msgspec.json.encode(document))))
    schemas = found["components"].setdefault("schemas", {})
    # Litestar leaves out the limits of parts of a union, and msgspec leaves out the formats of times.
    complete = msgspec.json.schema_components([Error, NewMessages, *REQUESTS], ref_template=_REF)[1]
    for name, schema in complete.items():
        for field, described in schemas.get(name, {}).get("properties", {}).items():
            _add_format(described, schema["properties"][field])
    schemas |= complete
    del schemas["Publish"]
    found["components"]["responses"] = {name: _answer(name, text) for name, (text, _) in ANSWERS.items()}
    for path, method, operation in _operations(found):
        _complete(path, method, operation)
        _close(operation, schemas)
    found["paths"].update(PATHS)
    return found


def _add_format(described: dict[str, Any], schema: dict[str, Any]) -> None:
    """Add the format of a text from one schema of a field to the other."""
    formats = {one["format"] for one in (described, *described.get("anyOf", ())) if "format" in one}
    for one in (schema, *schema.get("anyOf", ())):
        if formats and one.get("type") == "string":
            one["format"] = min(formats)


def _plain(schema: Any) -> Any:
    """Replace `oneOf` by `anyOf` in a schema. A whole number matches both integer and number,
    which `oneOf` forbids."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _plain(value) for name, value in schema.items() if name != "oneOf"}
    if "oneOf" in schema:
        choices = [_plain(one) for one in schema["oneOf"]]
        found |= choices[0] if len(choices) == 1 else {"anyOf": choices}
    return found


def _close(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Declare that a request body takes no other fields."""
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for one in (schema, *schema.get("anyOf", ())):
        name = one.get("$ref", "").rpartition("/")[2]
        if name:
            schemas[name]["additionalProperties"] = False


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    for status, answer in answers.items():
        answer["description"] = {"200": "Success.", "201": "Created."}.get(status, answer.get("description"))
    for status in [status for status in answers if status.startswith(("4", "5"))]:
        del answers[status]  # Litestar's own descriptions of errors
    body = operation.get("requestBody")
    for name, (_, status) in ANSWERS.items():
        if _may_answer(status, path, method, has_body=body is not None, has_parameters="parameters" in operation):
            answers[status] = {"$ref": f"#/components/responses/{name}"}
    if body is not None:
        content = body["content"]["application/json"]
        if content["schema"].get("$ref") == _REF.format(name="Publish"):  # one message, or several
            content["schema"] = {"anyOf": [{"$ref": _REF.format(name=name)} for name in ("NewMessage", "NewMessages")]}
        body["required"] = not _optional(content["schema"])
        example = EXAMPLES.get((method, path)) or _examples().get((method, _nameless(path)))
        if example is not None:
            content["example"] = example


@cache
def _examples() -> dict[tuple[str, str], Any]:
    """The examples of operations, by the method and the path without names."""
    return {(one.method.lower(), _nameless(one.path)): one.example for one in OPERATIONS.values()}


def _nameless(path: str) -> str:
    return re.sub(r"{\w+}", "{}", path)


def _may_answer(status: str, path: str, method: str, *, has_body: bool, has_parameters: bool) -> bool:
    if status in _ERRORS_OF_A_BODY:
        return has_body or (status == "422" and has_parameters)
    if status == "404":
        return "{" in path or has_body or path == "/v1/jobs"  # of a stream, which may not exist
    if status == "431":  # a path or a query may be as long as that
        return has_parameters
    if status == "409":
        # A consumer that is named without its stream may be ambiguous.
        return method != "get" or "http" in path or ("/consumers/" in path and "/streams/" not in path)
    if status == "429":
        return path.endswith(("/receive", "/next", "/messages")) or (method, path) == ("post", "/v1/session")
    return True


def _optional(schema: dict[str, Any]) -> bool:
    return any(one.get("type") == "null" for one in schema.get("oneOf", schema.get("anyOf", [])))


def _answer(name: str, description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}},
    }
