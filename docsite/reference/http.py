"""All routes of the HTTP API and their types, from the OpenAPI description that a server makes of itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from docsite.reference.markdown import code, plain, table

_TYPES = "http-types.md"
_WORDS = {"minimum": "at least {}", "exclusiveMinimum": "more than {}", "maximum": "at most {}",
          "minLength": "length at least {}", "maxLength": "length at most {}", "minItems": "length at least {}",
          "maxItems": "length at most {}", "format": "{}"}  # fmt: skip
"""Limits of JSON Schema in words."""


@cache
def description() -> dict[str, Any]:
    """Return the OpenAPI description that a server answers at /openapi.json. It needs no database for that."""
    from headrace import App
    from headrace.server.asgi import Server

    server = Server(App("postgresql://localhost/not-connected"))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": "/openapi.json", "raw_path": b"/openapi.json", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")], "server": ("localhost", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(server(scope, receive, send))
    found: dict[str, Any] = json.loads(b"".join(message.get("body", b"") for message in sent))
    return found


def page() -> str:
    """Return the page of the routes."""
    document = description()
    operations = list(_operations(document))
    parts = [
        "# All HTTP routes\n",
        f"{document['info']['description']}\n",
        f"The page [the HTTP API](../http.md) walks through them with curl. The bodies' types are in [types]({_TYPES}).\n",
    ]
    parts += [
        "## Errors\n",
        f"The body of an error is an [Error]({_TYPES}#error). Its codes are in [errors](errors.md).\n",
        _errors(document),
    ]
    for tag in document["tags"]:
        parts += [f"## {tag['name']}\n", f"{tag['description']}\n"]
        parts += [_operation(*one) for one in operations if one[2]["tags"] == [tag["name"]]]
    return "\n".join(parts)


def types_page() -> str:
    """Return the page of the types."""
    schemas = description()["components"]["schemas"]
    parts = ["# All HTTP types\n", "The bodies of the [routes](http.md). An unknown field in a request is refused.\n"]
    return "\n".join([*parts, *(_type(name, schemas[name]) for name in sorted(schemas))])


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [f"### `{method} {path}`\n", f"{operation['summary']}.\n"]
    if operation.get("description"):
        parts.append(f"{plain(operation['description'])}\n")
    rows = [
        (f"`{one['name']}`", one["in"], _kind(one["schema"]), _about(one["schema"], one.get("description", "")))
        for one in operation.get("parameters", ())
    ]
    if rows:
        parts.append(table(("parameter", "in", "type", "description"), rows))
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"Body: {_kind(content.get('schema', {}))}, as `{media}`.\n")
        if "example" in content:
            parts.append(code(json.dumps(content["example"], indent=2), "json"))
    responses = operation["responses"]
    parts += [_response(status, one) for status, one in responses.items() if "$ref" not in one]
    errors = [f"`{status}`" for status, one in responses.items() if "$ref" in one]
    if errors:
        parts.append(f"[Errors](#errors): {', '.join(errors)}.\n")
    return "\n".join(parts)


def _response(status: str, response: dict[str, Any]) -> str:
    contents = response.get("content", {}).items()
    bodies = [f"{_kind(content.get('schema', {}))}, as `{media}`" for media, content in contents]
    return f"Response `{status}`: {' or '.join(bodies) or plain(response['description']).rstrip('.')}.\n"


def _errors(document: dict[str, Any]) -> str:
    used = {(status, _name(one["$ref"]))
            for _, _, operation in _operations(document) for status, one in operation["responses"].items() if "$ref" in one}  # fmt: skip
    responses = document["components"]["responses"]
    rows = [(f"`{status}`", plain(responses[name]["description"])) for status, name in sorted(used)]
    return table(("status", "meaning"), rows)


def _type(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (f"`{field}`", _kind(one), "yes" if field in required else "", _about(one, one.get("description", "")))
        for field, one in schema.get("properties", {}).items()
    ]
    about = schema.get("description")
    parts = [f"## {name}\n", *([f"{plain(about)}\n"] if about else [])]
    parts.append(table(("field", "type", "required", "description"), rows) if rows else f"{_kind(schema)}.\n")
    return "\n".join(parts)


def _kind(schema: dict[str, Any]) -> str:
    """Return a schema's type in words, with links to other types."""
    if "$ref" in schema:
        name = _name(schema["$ref"])
        return f"[{name}]({_TYPES}#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    choices = schema.get("anyOf", schema.get("oneOf"))
    if choices and "type" not in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in choices))
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"array of {_kind(schema.get('items') or {})}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _about(schema: dict[str, Any], text: str) -> str:
    """Return a description with the limits and the default."""
    limits = [words.format(_number(schema[name])) for name, words in _WORDS.items() if name in schema]
    if "default" in schema and schema["default"] is not None:
        limits.append(f"default {json.dumps(schema['default'])}")
    found = f"{plain(text)} *{', '.join(limits)}*" if limits else plain(text)
    return found.strip()


def _number(value: Any) -> str:
    return f"{int(value):,}" if isinstance(value, (int, float)) and value == int(value) else str(value)


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
