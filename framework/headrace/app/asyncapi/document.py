"""Builds the AsyncAPI 3.0 document of an app.

Streams are channels, and each type that a stream carries is a message. A consumer is an operation that receives,
and one with `publishes` is another that sends, as is a schedule. Properties for which AsyncAPI has no field begin
with `x-headrace-`.

See https://www.asyncapi.com/docs/reference/specification/v3.0.0.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headrace.app.asyncapi.schemas import Schema, schemas_of
from headrace.app.consumer import Consumer
from headrace.model.conditions import describe
from headrace.model.messages.payloads import CODEC_HEADER, VERSION_HEADER
from headrace.model.schedules import ScheduleSpec
from headrace.model.specs import StreamSpec
from headrace.runtime.formats.format import StreamFormat
from headrace.runtime.handlers.signature import name_of_type
from headrace.sources.postgres.spec import PostgresSpec

VERSION = "3.0.0"

_KEYS = "Messages have keys: tokens separated by dots, such as orders.us.42. Those of one key are handled in order."
_ODD = re.compile(r"[^\w.-]+", re.ASCII)


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations of an app, as far as the document describes them."""

    streams: typing.Mapping[str, StreamSpec | None]
    formats: typing.Mapping[str, StreamFormat]
    consumers: Sequence[Consumer]
    captures: Sequence[PostgresSpec]
    schedules: Sequence[ScheduleSpec]


class _Payload(msgspec.Struct, frozen=True):
    """A type that a stream carries, and the name of its message."""

    stream: str
    name: str
    type: Any


def document(app: Described, title: str, version: str) -> dict[str, Any]:
    """Return the document. See `App.asyncapi`."""
    payloads = list(_payloads(app))
    schemas, components = schemas_of(payload.type for payload in payloads)
    messages: dict[str, Schema] = {}
    channels = {name: _channel(app, name) for name in _stream_names(app)}
    for payload, schema in zip(payloads, schemas, strict=True):
        component = _ODD.sub("_", f"{payload.stream}.{payload.name}")
        messages[component] = _message(payload, schema, app.formats.get(payload.stream))
        channels[payload.stream]["messages"][payload.name] = _reference("components", "messages", component)
    operations: dict[str, Any] = {}
    for consumer in app.consumers:
        operations.update(_operations(consumer))
    operations.update(map(_periodic, app.schedules))
    return {
        "asyncapi": VERSION,
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": components},
    }


def _stream_names(app: Described) -> list[str]:
    """The names of all streams that the app declares, reads, captures into or publishes to, also periodically."""
    named = [
        *app.streams,
        *(capture.stream for capture in app.captures),
        *(schedule.stream for schedule in app.schedules),
        *(consumer.spec.stream for consumer in app.consumers),
        *(consumer.handling.publishes for consumer in app.consumers if consumer.handling.publishes is not None),
    ]
    return list(dict.fromkeys(named))


def _payloads(app: Described) -> Iterator[_Payload]:
    """The types of each stream: the declared one, or else those that its handlers take."""
    for stream in _stream_names(app):
        if stream in app.formats:
            kinds = [app.formats[stream].type]
        else:
            kinds = [consumer.handler.takes for consumer in app.consumers if consumer.spec.stream == stream]
        known: dict[str, Any] = {}
        for kind in kinds:
            if kind is not Any:
                known.setdefault(_ODD.sub("_", name_of_type(kind)).strip("_"), kind)
        yield from (_Payload(stream, name, kind) for name, kind in known.items())


def _channel(app: Described, stream: str) -> dict[str, Any]:
    settings = app.streams.get(stream)
    changed = {} if settings is None else _changed(settings)
    channel: dict[str, Any] = {"address": stream, "description": _KEYS, "messages": {}}
    if changed:
        channel["x-headrace-stream"] = changed
    tables = [table for capture in app.captures if capture.stream == stream for table in capture.tables]
    if tables:
        channel["x-headrace-capture"] = tables
    return channel


def _changed(spec: StreamSpec) -> dict[str, Any]:
    """The settings of a stream that are not the defaults."""
    defaults = StreamSpec(name=spec.name)
    return {
        name: _plain(getattr(spec, name))
        for name in spec.__struct_fields__
        if getattr(spec, name) != getattr(defaults, name)
    }


def _message(payload: _Payload, schema: Schema, stored_as: StreamFormat | None) -> dict[str, Any]:
    message: dict[str, Any] = {"name": payload.name, "title": payload.name, "payload": schema}
    summary = _summary(payload.type)
    if summary:
        message["summary"] = summary
    headers: dict[str, Any] = {}
    if stored_as is not None and stored_as.upcasters.version > 1:
        headers[VERSION_HEADER] = {"type": "integer", "const": stored_as.upcasters.version}
    if stored_as is not None and stored_as.codec is not None:
        headers[CODEC_HEADER] = {"type": "object", "description": "The codec's data for decoding the payload."}
        message["x-headrace-codec"] = type(stored_as.codec).__name__
        message["description"] = "It is stored as a JSON string, the base64 of the payload as encoded by the codec."
    if headers:
        message["headers"] = {"type": "object", "properties": headers}
    return message


def _summary(kind: Any) -> str | None:
    """The first line of the docstring of a user's class, unless a decorator has generated it."""
    written = kind.__doc__ if isinstance(kind, type) and kind.__module__ != "builtins" else None
    if not written or written.startswith(f"{kind.__name__}("):
        return None
    return inspect.cleandoc(written).partition("\n")[0]


def _operations(consumer: Consumer) -> Iterator[tuple[str, dict[str, Any]]]:
    spec, handling = consumer.spec, consumer.handling
    name = f"{spec.stream}.{spec.name}"
    received: dict[str, Any] = {
        "action": "receive",
        "channel": _reference("channels", spec.stream),
        "title": spec.name,
        "x-headrace-filter": list(spec.filters),
        "x-headrace-ordered": spec.ordered,
        "x-headrace-retry": {
            "max_deliver": spec.max_deliver,
            "ack_wait": spec.ack_wait,
            "backoff": _plain(spec.backoff),
            "on_exhausted": spec.on_exhausted,
        },
    }
    doc = inspect.getdoc(consumer.handler.function)
    if doc:
        received["summary"], _, rest = doc.partition("\n")
        received |= {"description": rest.strip()} if rest.strip() else {}
    if spec.where is not None:
        received["x-headrace-where"] = describe(spec.where)
    if handling.batch is not None:
        received["x-headrace-batch"] = handling.batch
    if handling.transactional:
        received["x-headrace-transactional"] = True
    yield name, received
    if handling.publishes is not None:
        yield (
            f"{name}.publishes",
            {
                "action": "send",
                "channel": _reference("channels", handling.publishes),
                "title": f"{spec.name} publishes",
                "x-headrace-consumer": name,
            },
        )


def _periodic(schedule: ScheduleSpec) -> tuple[str, dict[str, Any]]:
    operation: dict[str, Any] = {
        "action": "send",
        "channel": _reference("channels", schedule.stream),
        "title": schedule.name,
        "x-headrace-every": schedule.every,
    }
    if schedule.zone is not None:
        operation["x-headrace-zone"] = schedule.zone
    return f"{schedule.stream}.{schedule.name}.every", operation


def _plain(value: Any) -> Any:
    """The value as JSON has it, with lists instead of tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _reference(*path: str) -> dict[str, str]:
    return {"$ref": "#/" + "/".join(path)}
