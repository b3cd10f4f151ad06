"""The JSON Schema of configuration files, for editors. It is made of the settings of the specs."""

from __future__ import annotations

from typing import Any, get_origin

from headrace.admin.configuration.fields import fields_of
from headrace.model.conditions import Condition
from headrace.model.push import Push
from headrace.model.settings import Setting
from headrace.model.specs import Backoff
from headrace.model.tokens import SCOPE
from headrace.store import PRIVILEGES
from headrace.store.database.references import REFERENCE

_TEXTS = {"type": "array", "items": {"type": "string"}}
_TEXT_OR_TEXTS = {"anyOf": [{"type": "string"}, _TEXTS]}
_REFERENCE = {"type": "string", "pattern": r"\$\{"}


def json_schema() -> dict[str, Any]:
    """Return the schema, of draft 2020-12."""
    consumer = _mapping(_properties("consumer"))
    consumers = _named(consumer, "The stream's consumers, by name.")
    stream = _mapping(_properties("stream") | {"database": _DATABASE, "consumers": consumers})
    sources = [
        _mapping({"kind": {"const": kind}, **_stream_property(), **_properties(kind)}, ["kind", "stream", *required])
        for kind, required in (("webhook", []), ("postgres", ["tables"]))
    ]
    name = "The name under which `apply` remembers what it manages, for `--prune`."
    objects = _mapping(
        {
            "name": {"type": "string", "description": name},
            "databases": _named(_database(), "Further databases behind the same servers, by name."),
            "streams": _named(stream, "Streams, by name."),
            "sources": _named({"oneOf": sources}, "Sources, by name."),
            "tokens": _named(_token(), "Access tokens, by name."),
            "grants": _named(_grants(), "Grants to database roles, by role."),
        }
    )
    title = "A configuration of Headrace"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **objects}


_DATABASE = {
    "type": ["string", "null"],
    "description": "The database that the stream lives in. By default it is where the stream exists, or else the configuration database.",
}


def _database() -> dict[str, Any]:
    place = {
        "type": "string",
        "description": "Where its URL is found: env:NAME or file:/path.",
        "anyOf": [{"pattern": REFERENCE}, _REFERENCE],
    }
    return _mapping(
        {"url_from": place, "grants": _named(_grants(), "Grants to its database roles, by role.")}, ["url_from"]
    )


def _stream_property() -> dict[str, Any]:
    return {"stream": {"type": "string", "description": "The stream to which messages are published."}}


def _mapping(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": ["object"] if required else ["object", "null"], "properties": properties}
    return {**found, "additionalProperties": False} | ({"required": required} if required else {})


def _named(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"type": ["object", "null"], "description": description, "additionalProperties": schema}


def _token() -> dict[str, Any]:
    scopes = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string", "pattern": SCOPE}, _REFERENCE]}}
    expires = {"type": ["string", "number"], "description": "How long a new token is valid, such as 30d."}
    return _mapping({"scopes": scopes, "expires_in": expires}, ["scopes"])


def _grants() -> dict[str, Any]:
    return _mapping({one: {"anyOf": [{"const": "all"}, _TEXTS]} for one in PRIVILEGES})


def _properties(owner: str) -> dict[str, Any]:
    return {name: _described(setting) for name, setting in fields_of(owner).items()}


def _described(setting: Setting) -> dict[str, Any]:
    kinds = [_kind(setting)]
    if "string" not in str(kinds[0].get("type")):
        kinds.append(_REFERENCE)
    if not setting.required:
        kinds.append({"type": "null"})
    return {"description": setting.details, "anyOf": kinds}


def _kind(setting: Setting) -> dict[str, Any]:
    if setting.kind is Push:
        return _mapping(_properties("push"))
    if setting.choices:
        return {"enum": list(setting.choices)}
    if setting.kind is bool:
        return {"type": "boolean"}
    if setting.kind is Backoff:
        return {
            "anyOf": [
                {"type": ["number", "string", "object"]},
                {"type": "array", "items": {"type": ["number", "string"]}},
            ]
        }
    if setting.kind is Condition or setting.kind is Any:
        return {"type": ["string", "object"]}
    if setting.unit in ("seconds", "bytes", "messages per second"):
        return {"anyOf": [{"type": "number", **setting.bounds()}, {"type": "string"}]}
    if setting.kind in (int, float):
        return {"type": "integer" if setting.kind is int else "number", **setting.bounds()}
    if setting.many:
        return _TEXT_OR_TEXTS
    return {dict: {"type": "object"}, tuple: {"type": "array"}}.get(
        get_origin(setting.kind) or setting.kind, {"type": "string"}
    )
