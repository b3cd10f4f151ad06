"""Conversion of specs and settings to request bodies, and of answers to specs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.client.request import iso
from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.conditions.selections import Filter, Where
from headrace.model.durations import seconds
from headrace.model.errors import AlreadyExists
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.push import Push
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.settings import settings_of
from headrace.model.specs import Backoff, ConsumerSpec, StreamSpec
from headrace.model.text.masking import HIDDEN

if TYPE_CHECKING:
    from headrace.admin.source_settings import Spec


def filters(filter_: Filter) -> str | list[str] | None:
    """Return key filters as the API takes them."""
    if filter_ is None or isinstance(filter_, str):
        return filter_
    return filter_[0] if len(filter_) == 1 else list(filter_)


def condition(where: Where) -> str | None:
    """Return a condition as text."""
    if where is None or isinstance(where, str):
        return where
    if isinstance(where, Mapping):
        return msgspec.json.encode(where).decode()
    return conditions.describe(where)


# --- streams


def new_stream(spec: StreamSpec) -> dict[str, Any]:
    """Return the body that creates a stream. It has the settings that differ from their defaults."""
    return {"name": spec.name, **_changed_from(StreamSpec(name=spec.name), spec)}


def stream_spec(info: StreamInfo) -> StreamSpec:
    """Return a stream's settings."""
    return msgspec.convert({name: getattr(info, name) for name in StreamSpec.__struct_fields__}, StreamSpec)


# --- messages


def publish_options(options: PublishOptions) -> dict[str, Any]:
    """Return the options of a message as the API takes them."""
    given, body = options.given(), {}
    for name, setting in settings_of(PublishOptions).items():
        if name in given:
            sent_as, value = setting.names[0], given[name]
            if sent_as.endswith("_ms"):
                value = round(seconds(value, name) * 1000, 3)
            body[sent_as] = iso(value) if isinstance(value, datetime) else value
    return body


# --- consumers


def new_consumer(spec: ConsumerSpec) -> dict[str, Any]:
    """Return the body that creates a consumer. It has the settings that differ from their defaults."""
    settings = _changed_from(ConsumerSpec(stream=spec.stream, name=spec.name), spec)
    if spec.push is not None:
        settings["push"] = msgspec.to_builtins(spec.push)  # leaves defaults out
    return {"name": spec.name, **consumer_changes(settings)}


def consumer_changes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a `ConsumerSpec` as the API takes them, with conditions as text and push
    settings in the API's units."""
    body = dict(settings)
    if "filters" in body:
        body["filter"] = filters(body.pop("filters"))
    if "where" in body:
        body["where"] = condition(body["where"])
    if body.get("backoff") == Backoff():
        body["backoff"] = None
    if "push" in body:
        push = body["push"]
        body |= {"kind": "pull" if push is None else "push", "push": None if push is None else _push(push)}
    return body


def _push(push: Push | Mapping[str, Any]) -> dict[str, Any]:
    body = dict(push) if isinstance(push, Mapping) else msgspec.structs.asdict(push)
    if "timeout" in body:
        body["timeout_ms"] = seconds(body.pop("timeout"), "timeout") * 1000
    if "batch" in body:
        body["batch_size"] = body.pop("batch")
    return body


def consumer_spec(info: ConsumerInfo) -> ConsumerSpec:
    """Return a consumer's settings, without the secret of a push consumer."""
    settings = {name: value for name, value in info.settings.items() if name in ConsumerSpec.__struct_fields__}
    where = settings.pop("where", None)
    if settings.get("push") is not None:
        settings["push"] = Push.stored({name: value for name, value in settings["push"].items() if name != "secret"})
    spec = msgspec.convert({**settings, "stream": info.stream, "name": info.name}, ConsumerSpec)
    return spec if where is None else msgspec.structs.replace(spec, where=conditions.parse(where))


def consumer_settings(spec: ConsumerSpec) -> dict[str, Any]:
    """Return settings as `ConsumerInfo.settings` has them, without the start position. Secrets are
    masked, so they are not compared."""
    # Encoded as JSON and decoded, because the stored settings have been through JSON too.
    settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(spec, where=None)))
    if spec.push is not None and spec.push.secret:
        settings["push"]["secret"] = HIDDEN
    for start in ("deliver_policy", "start_seq", "start_time"):
        del settings[start]
    return {**settings, "where": condition(spec.where), "filters": list(spec.filters)}


# --- sources


def new_source(spec: Spec) -> dict[str, Any]:
    """Return the body that creates or checks a source. It has the settings that differ from their defaults."""
    from headrace.sources.webhook import WebhookSpec  # cheaper to import than `PostgresSpec`

    kind = "webhook" if isinstance(spec, WebhookSpec) else "postgres"
    return {"kind": kind, "name": spec.name, "stream": spec.stream, **spec.given()}


def source_changes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a source as the API takes them."""
    where = settings.get("where")
    return {**settings, "where": condition(where)} if isinstance(where, Condition) else dict(settings)


# --- comparison


def refuse_changes(existing: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    """Raise `AlreadyExists` if an existing object has other settings than the one to be created."""
    differing = {name: (old, wanted[name]) for name, old in existing.items() if name in wanted and old != wanted[name]}
    if differing:
        raise AlreadyExists.with_settings(what, differing)


def _changed_from(default: StreamSpec | ConsumerSpec, spec: StreamSpec | ConsumerSpec) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    return {name: value for name, value in msgspec.structs.asdict(spec).items() if value != getattr(default, name)}
