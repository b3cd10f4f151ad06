"""Each field and parameter of a request describes its limit, or is known to have none, and the limit is the one in code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.model.conditions.tree import MAX_JSON_BYTES
from headrace.model.keys import MAX_FILTERS, MAX_KEY_BYTES
from headrace.model.push import LONGEST_HEADER, LONGEST_URL
from headrace.model.tokens import MOST_SCOPES
from headrace.server.openapi.description import REQUESTS
from headrace.sources.postgres.settings import LONGEST_NAME, MOST_GROUP, MOST_TABLES
from headrace.sources.postgres.table_names import MAX_NAME
from headrace.sources.templates import MAX_TEMPLATE_BYTES
from headrace.sources.webhook import LONGEST_HEADER_NAME, LONGEST_SECRET
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

LIMITS = {
    "string": ("maxLength", "pattern", "enum", "const", "format"),
    "array": ("maxItems",),
    "integer": ("maximum", "exclusiveMaximum"),
    "number": ("maximum", "exclusiveMaximum"),
}
"""What limits a value, by its type."""


UNLIMITED = {
    "text that stands for a limited number": {
        "ack_wait: string", "backoff: string", "backoff[]: string", "rate_limit: string", "dedupe_window: string",
        "retain_at_least: string", "history: string", "retain_up_to: string", "wait_for: string",
    },
    "delays have no upper limit": {
        "backoff: array", "backoff: number", "backoff[]: number", "backoff_ms: array", "backoff_ms: number", "backoff_ms[]: number",
    },
    "what names an existing object is compared with those that there are": {
        "name: string", "stream: string", "target: string", "id: string", "ack_ids[]: string", "nack_ids[]: string",
        "ack_tokens[]: string",
        "consumer: string", "source: string", "token: string", "job: string",
    },
    "text that is cut": {"error: string"},
    "text that another program reads": {"database: string", "transform: string", "group[]: string", "columns.*[]: string", "sort: string"},
    "a time, or one of two words": {"to: string"},
}  # fmt: skip
"""What has no limit in code, and why."""


async def document(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = (await api.client.get("/openapi.json")).json()
    return found


def unlimited(schema: Any, place: str) -> Iterator[str]:
    """Yield the places in the schema of a value at which it has no limit."""
    if not isinstance(schema, dict):
        return
    choices = [
        {**{name: value for name, value in schema.items() if name != "anyOf"}, **one} for one in schema.get("anyOf", ())
    ]
    for one in choices or [schema]:
        if "const" in one or "enum" in one or "$ref" in one:
            continue
        kinds = one.get("type", "any")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind in LIMITS and not set(LIMITS[kind]) & set(one):
                yield f"{place}: {kind}"
            if kind == "integer" and not {"minimum", "exclusiveMinimum"} & set(one):
                yield f"{place}: integer without a minimum"
            if kind == "array" and isinstance(one.get("items"), dict):
                yield from unlimited({**schema.get("items", {}), **one["items"]}, f"{place}[]")
            if kind == "object" and isinstance(one.get("additionalProperties"), dict):
                yield from unlimited(one["additionalProperties"], f"{place}.*")


async def test_every_field_of_a_request_describes_its_limit(api: Api) -> None:
    schemas = (await document(api))["components"]["schemas"]
    found = set()
    for name in (*(kind.__name__ for kind in REQUESTS), "NewMessage", "NewMessages", "PushSettings"):
        for field, schema in schemas[name]["properties"].items():
            found |= set(unlimited(schema, field))
    known = set().union(*UNLIMITED.values())
    assert sorted(found - known) == [], "describe the limit, or name the field above if code has none"
    assert sorted(known - found) == ["job: string", "source: string", "token: string"], "of parameters"


async def test_every_parameter_describes_its_limit(api: Api) -> None:
    found = set()
    for item in (await document(api))["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                found |= set(unlimited(parameter["schema"], parameter["name"]))
    assert sorted(found - set().union(*UNLIMITED.values())) == []


SHIP = "/streams/orders/consumers/ship"
SHOP = {"kind": "postgres", "stream": "rows", "tables": ["public.t"], "database": "postgresql://x@127.0.0.1:1/x"}

CASES: list[tuple[str, str, int, str, str, Callable[[int], Any]]] = [
    # the schema and its field, the limit in code, and the request that has so many
    ("ConsumerSettings.filter", "maxItems", MAX_FILTERS, "PATCH", SHIP, lambda n: {"filter": [f"k{i}" for i in range(n)]}),
    ("ConsumerSettings.filter_key_pattern", "maxItems", MAX_FILTERS, "PATCH", SHIP,
     lambda n: {"filter_key_pattern": [f"k{i}" for i in range(n)]}),
    ("ConsumerSettings.filters", "maxItems", MAX_FILTERS, "PATCH", SHIP, lambda n: {"filters": [f"k{i}" for i in range(n)]}),
    ("ConsumerSettings.filter", "maxLength", MAX_KEY_BYTES, "PATCH", SHIP, lambda n: {"filter": "k" * n}),
    ("ConsumerSettings.filter[]", "maxLength", MAX_KEY_BYTES, "PATCH", SHIP, lambda n: {"filter": ["k" * n]}),
    ("ConsumerSettings.where", "maxLength", MAX_JSON_BYTES, "PATCH", SHIP, lambda n: {"where": "data.a = 1".ljust(n)}),
    ("ConsumerSettings.url", "maxLength", LONGEST_URL, "PATCH", SHIP, lambda n: {"url": "http://example.com/".ljust(n, "a")}),
    ("PushSettings.headers.*", "maxLength", LONGEST_HEADER - 1, "PATCH", SHIP,
     lambda n: {"push": {"url": "http://example.com/", "headers": {"x": "a" * n}}}),
    ("DeadLetterChoice.filter", "maxItems", MAX_FILTERS, "POST", f"{SHIP}/dead_letters/redrive",
     lambda n: {"filter": [f"k{i}" for i in range(n)]}),
    ("DeadLetterChoice.key", "maxLength", MAX_KEY_BYTES, "POST", f"{SHIP}/dead_letters/purge", lambda n: {"key": "k" * n}),
    ("DeadLetterChoice.where", "maxLength", MAX_JSON_BYTES, "POST", f"{SHIP}/dead_letters/purge",
     lambda n: {"where": "data.a = 1".ljust(n)}),
    ("Choice.filter", "maxItems", MAX_FILTERS, "POST", f"{SHIP}/replay", lambda n: {"filter": [f"k{i}" for i in range(n)]}),
    ("Choice.filter", "maxLength", MAX_KEY_BYTES, "POST", f"{SHIP}/replay", lambda n: {"filter": "k" * n}),
    ("Choice.where", "maxLength", MAX_JSON_BYTES, "POST", f"{SHIP}/replay", lambda n: {"where": "data.a = 1".ljust(n)}),
    ("Republish.where", "maxLength", MAX_JSON_BYTES, "POST", "/streams/orders/republish",
     lambda n: {"target": "orders", "where": "data.a = 1".ljust(n), "dry_run": True}),
    ("SourceSettings.where", "maxLength", MAX_JSON_BYTES, "PATCH", "/sources/shop", lambda n: {"where": "data.action = 'x'".ljust(n)}),
    ("SourceSettings.tables", "maxItems", MOST_TABLES, "PATCH", "/sources/shop",
     lambda n: {"tables": [f"public.t{i}" for i in range(n)]}),
    ("SourceSettings.group", "maxItems", MOST_GROUP, "PATCH", "/sources/shop", lambda n: {"group": [f"c{i}" for i in range(n)]}),
    ("SourceSettings.key", "maxLength", MAX_TEMPLATE_BYTES, "PATCH", "/sources/shop",
     lambda n: {"key": "k{record.id}".rjust(n, "k"), "group": None}),
    ("SourceSettings.key", "maxLength", MAX_TEMPLATE_BYTES, "PATCH", "/sources/hook", lambda n: {"key": "k" * n}),
    ("SourceSettings.secret", "maxLength", LONGEST_SECRET, "PATCH", "/sources/hook",
     lambda n: {"signature": "github", "secret": "s" * n}),
    ("SourceSettings.secrets[]", "maxLength", LONGEST_SECRET, "PATCH", "/sources/hook",
     lambda n: {"signature": "github", "secrets": ["s" * n]}),
    ("SourceSettings.keep_headers[]", "maxLength", LONGEST_HEADER_NAME, "PATCH", "/sources/hook",
     lambda n: {"keep_headers": ["x" * n]}),
    ("NewSource.slot", "maxLength", LONGEST_NAME, "POST", "/sources", lambda n: {**SHOP, "name": "slot", "slot": "s" * n}),
    ("NewSource.publication", "maxLength", LONGEST_NAME, "POST", "/sources",
     lambda n: {**SHOP, "name": "publication", "publication": "p" * n}),
    ("NewSource.tables[]", "maxLength", MAX_NAME, "POST", "/sources",
     lambda n: {**SHOP, "name": "tables", "tables": ['"' * (MAX_NAME // 2) + "." + '"' * (n - MAX_NAME // 2 - 1)]}),
    ("NewBackfill.where", "maxLength", MAX_JSON_BYTES, "POST", "/sources/own/backfills",
     lambda n: {"tables": [], "where": "data.record.id = 1".ljust(n)}),
    ("NewBackfill.tables", "maxItems", MOST_TABLES, "POST", "/sources/own/backfills", lambda n: {"tables": ["public.t"] * n}),
    ("TokenRequest.scopes", "maxItems", MOST_SCOPES, "POST", "/tokens",
     lambda n: {"name": "many", "scopes": ["admin", *(f"publish:s{i}" for i in range(n - 1))]}),
]  # fmt: skip


def schema_of(schemas: dict[str, Any], place: str) -> dict[str, Any]:
    """The schema at a place such as `ConsumerSettings.filter[]`, with all that its choices say."""
    name, field, *rest = place.replace("[]", ".[]").split(".")
    found = schemas[name]["properties"][field]
    for step in rest:
        key = "items" if step == "[]" else "additionalProperties"
        found = next(one[key] for one in (*found.get("anyOf", ()), found) if isinstance(one.get(key), dict))
    return {name: value for one in (found, *found.get("anyOf", ())) for name, value in one.items()}


async def prepared(api: Api) -> dict[str, Any]:
    """Create what the requests are about. Returns the schemas."""
    schemas: dict[str, Any] = (await document(api))["components"]["schemas"]
    await api.stream()
    await api.consumer()
    await api.post("/sources", {"name": "hook", "stream": "orders"}, 201)
    await api.post("/sources", {**SHOP, "name": "shop"}, 201)
    await api.post("/sources", {**SHOP, "name": "own", "database": None}, 201)
    return schemas


async def test_the_limits_are_those_of_the_code(api: Api) -> None:
    schemas = await prepared(api)
    for place, word, limit, method, path, body in CASES:
        assert schema_of(schemas, place)[word] == limit, place
        answer = await api.answer(method, path, body(limit))
        assert answer.status_code in (200, 201), (place, answer.text[:300])
        token = answer.json().get("token")
        if token is not None:
            api.client.headers["authorization"] = f"Bearer {token}"
        answer = await api.answer(method, path, body(limit + 1))
        assert answer.status_code == 422, (place, answer.text[:300])
        assert answer.json()["validation_errors"], place


async def test_the_limits_of_parameters_are_those_of_the_code(api: Api) -> None:
    await prepared(api)
    operation = (await document(api))["paths"]["/v1/streams/{stream}/messages"]["get"]
    schemas = {one["name"]: one["schema"] for one in operation["parameters"]}
    for name in ("filter", "key_pattern"):
        assert schemas[name]["maxItems"] == MAX_FILTERS
        assert schemas[name]["items"]["maxLength"] == MAX_KEY_BYTES
        await api.get("/streams/orders/messages", **{name: [f"k{i}" for i in range(MAX_FILTERS)]})
        await api.get("/streams/orders/messages", **{name: ["k" * MAX_KEY_BYTES]})
        for many in ([f"k{i}" for i in range(MAX_FILTERS + 1)], ["k" * (MAX_KEY_BYTES + 1)]):
            await api.refused("GET", "/streams/orders/messages", status=422, **{name: many})
    assert schemas["where"]["maxLength"] == MAX_JSON_BYTES
    for name in ("after", "before"):
        assert (schemas[name]["minimum"], schemas[name]["exclusiveMaximum"]) == (0, 2**62)


async def test_the_place_of_a_consumer_with_the_longest_name_is_accepted(api: Api) -> None:
    await api.stream("s" * 48)
    for name in ("a" * 200, "b" * 200):
        await api.consumer(name, "s" * 48)
    first = await api.get("/consumers", limit=1)
    second = await api.get("/consumers", limit=1, after=first["next"])
    assert [one["name"][0] for one in (*first["data"], *second["data"])] == ["a", "b"]
