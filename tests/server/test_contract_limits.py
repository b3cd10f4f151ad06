"""Every limit stands in the API's description, and is enforced with the same number."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.settings import Setting, settings_of
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

_NEEDED = {"rate_burst": {"rate_limit": 5}}
"""Settings that others need."""


async def _schemas(api: Api) -> dict[str, Any]:
    document = (await api.client.get("/openapi.json")).json()
    found: dict[str, Any] = document["components"]["schemas"]
    return found


def _edges(setting: Setting, name: str) -> tuple[list[float], list[float]]:
    """Return the outermost valid numbers of a setting, and the nearest invalid ones."""
    assert setting.limits is not None
    scale = 1000 if name.endswith("_ms") else 1
    low, high = (limit * scale for limit in setting.limits)
    step = 1 if setting.kind is int else min(low, 1) / 2 or 1
    valid = [low + step if setting.exclusive else low, high]
    return valid, [low if setting.exclusive else low - step, high + step]


async def _check(api: Api, path: str, schema: dict[str, Any], spec: type[Any]) -> int:
    checked = 0
    for setting in settings_of(spec).values():
        if setting.limits is None or setting.fixed:
            continue
        for name in setting.names:
            field = schema["properties"][name]
            bounds = field["anyOf"][0] if setting.unlimited is not None else field
            valid, invalid = _edges(setting, name)
            assert bounds["maximum"] == valid[1], name
            assert (
                bounds["exclusiveMinimum" if setting.exclusive else "minimum"]
                == (invalid if setting.exclusive else valid)[0]
            )
            for number in valid:
                given = {name: int(number) if setting.kind is int else number, **_NEEDED.get(name, {})}
                await api.call("PATCH", path, given)
            for number in invalid:
                given = {name: int(number) if setting.kind is int else number, **_NEEDED.get(name, {})}
                answer = await api.refused("PATCH", path, given, status=422)
                assert list(answer["validation_errors"]) == [name], answer
            if setting.unlimited is not None:
                assert field["anyOf"][1] == {"const": setting.unlimited}
                await api.call("PATCH", path, {name: setting.unlimited})
            if setting.optional:
                await api.call("PATCH", path, {name: None})
            checked += 1
    return checked


async def test_the_limits_of_settings_are_described_and_enforced_alike(api: Api) -> None:
    await api.stream()
    await api.consumer()
    schemas = await _schemas(api)
    assert await _check(api, "/streams/orders", schemas["StreamSettings"], StreamSpec) == 4
    assert await _check(api, "/streams/orders/consumers/ship", schemas["ConsumerSettings"], ConsumerSpec) == 8


async def test_the_limits_of_requests_are_described_and_enforced_alike(api: Api) -> None:
    await api.stream()
    await api.consumer()
    schemas = await _schemas(api)
    receive, nack = schemas["Receive"]["properties"], schemas["Nack"]["properties"]
    message = schemas["NewMessage"]["properties"]
    ship = "/streams/orders/consumers/ship"
    assert (receive["batch_size"]["minimum"], receive["batch_size"]["maximum"]) == (1, 1000)
    assert (receive["wait_for"]["minimum"], receive["wait_for"]["maximum"]) == (0, 3_600_000)
    assert nack["ack_ids"]["maxItems"] == nack["ack_tokens"]["maxItems"] == 10_000
    assert (nack["delay_ms"]["minimum"], nack["delay_ms"]["maximum"]) == (0, 365 * 86_400_000)
    assert (message["key"]["minLength"], message["key"]["maxLength"]) == (1, 1024)
    assert message["message_id"]["maxLength"] == 256
    assert "256" in str(message["unique_key"])
    assert schemas["NewMessages"]["properties"]["messages"]["maxItems"] == 10_000
    assert schemas["NewConsumer"]["properties"]["name"]["maxLength"] == 200
    await api.post(f"{ship}/receive", {"batch_size": 1000})
    for body in ({"batch_size": 1001}, {"wait_for": 3_600_001}):
        await api.refused("POST", f"{ship}/receive", body, status=422)
    sent = {"key": "k" * 1024, "data": 1, "message_id": "i" * 256, "delay_ms": 365 * 86_400_000}
    await api.post("/streams/orders/messages", sent)
    for change in (
        {"key": "k" * 1025, "message_id": "j"},
        {"message_id": "i" * 257},
        {"delay_ms": 365 * 86_400_000 + 1},
    ):
        await api.refused("POST", "/streams/orders/messages", {**sent, **change}, status=422)
    await api.consumer("c" * 200)
    many = [{"key": "k", "data": 1}] * 10_001
    await api.refused("POST", "/streams/orders/messages", {"messages": many}, status=422)
    ids = ["x"] * 10_001
    answer = await api.refused("POST", f"{ship}/ack", {"ack_ids": ids}, status=422)
    assert "10,000" in answer["summary"]


async def test_parameters_have_their_limits(api: Api) -> None:
    document = (await api.client.get("/openapi.json")).json()
    limited = {"batch_size": (1, 1000), "limit": (1, 10_000)}
    found = 0
    for path, item in document["paths"].items():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in limited:
                    schema = parameter["schema"]
                    most = (1, 500) if "/live/" in path else limited[parameter["name"]]
                    assert (schema["minimum"], schema["maximum"]) == most, path
                    found += 1
    assert found > 6


async def test_every_action_of_a_change_is_described(api: Api) -> None:
    schemas = await _schemas(api)
    actions = {"read", "insert", "update", "delete", "truncate"}
    assert set(schemas["Change"]["properties"]["action"]["enum"]) == actions
    assert set(schemas["NewSource"]["properties"]["actions"]["items"]["enum"]) == actions - {"read"}


async def test_the_lengths_of_settings_are_described_and_enforced_alike(api: Api) -> None:
    await api.stream()
    await api.consumer()
    schemas = await _schemas(api)
    url = "http://example.com/"
    longest: list[tuple[str, str, str, str, Any]] = [
        ("PATCH", "/streams/orders/consumers/ship", "PushSettings", "url", lambda n: {"push": {"url": url.ljust(n, "a")}}),
        ("PATCH", "/streams/orders/consumers/ship", "PushSettings", "headers",
         lambda n: {"push": {"url": url, "headers": {f"x-{i}": "" for i in range(n)}}}),
        ("PATCH", "/sources/hook", "SourceSettings", "keep_headers", lambda n: {"keep_headers": [f"x-{i}" for i in range(n)]}),
        ("PATCH", "/sources/hook", "SourceSettings", "secrets",
         lambda n: {"signature": "github", "secrets": [f"x-{i}" for i in range(n)]}),
    ]  # fmt: skip
    await api.post("/sources", {"name": "hook", "stream": "orders"}, 201)
    for method, path, schema, field, body in longest:
        limits = schemas[schema]["properties"][field]
        (limit,) = (limits[name] for name in ("maxLength", "maxItems", "maxProperties") if name in limits)
        await api.call(method, path, body(limit))
        answer = await api.refused(method, path, body(limit + 1), status=422)
        assert answer["validation_errors"], field
