"""The credentials of push consumers: who may read them, and what an echo of masked ones changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace import store
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

SECRET = "whsec_" + "QUFB" * 8
URL = "https://hooks.example/T0/hidden-path?token=hidden-query"
HEADERS = {"Authorization": "Bearer hidden-token", "X-Team": "hidden-team"}
HIDDEN = ("hidden", "QUFB")


async def shop(api: Api) -> dict[str, str]:
    """A push consumer with credentials, and a token for each scope. Returns the tokens."""
    await api.stream()
    await api.consumer("ship", kind="push", push={"url": URL, "headers": HEADERS, "secret": SECRET, "shape": "message"})
    tokens = {}
    for name, scopes in {
        "admin": ["admin"],
        "owner": ["admin:orders"],
        "reader": ["consume"],
        "ours": ["consume:orders"],
        "mixed": ["consume", "admin:other"],
    }.items():
        made = await api.post("/tokens", {"name": name, "scopes": scopes}, 201)
        tokens[name] = made["token"]
        act_as(api, tokens["admin"])
    return tokens


def act_as(api: Api, token: str) -> None:
    api.client.headers["authorization"] = f"Bearer {token}"


ONE = ("/streams/orders/consumers/ship", "/http-consumers/ship", "/streams/orders/consumers")
ALL = ("/consumers", "/http-consumers")


async def test_only_admin_reads_the_credentials_of_a_push_consumer(api: Api) -> None:
    tokens = await shop(api)
    for name in ("reader", "ours", "mixed"):
        act_as(api, tokens[name])
        for path in ONE + (() if name == "ours" else ALL):
            text = json.dumps(await api.get(path))
            assert not [word for word in HIDDEN if word in text], (name, path)
            assert "https://hooks.example/" in text
            assert "Authorization" in text
    for name in ("admin", "owner"):
        act_as(api, tokens[name])
        for path in ONE + (() if name == "owner" else ALL):
            text = json.dumps(await api.get(path))
            assert "hidden-token" in text, (name, path)
            assert "hidden-query" in text
            assert "QUFB" not in text  # which nobody reads again
    act_as(api, tokens["admin"])
    assert "hidden" not in (await api.client.get("/metrics")).text


async def test_an_echo_of_masked_settings_changes_nothing(api: Api) -> None:
    tokens = await shop(api)
    act_as(api, tokens["reader"])
    found: dict[str, Any] = await api.get("/streams/orders/consumers/ship")
    act_as(api, tokens["owner"])
    for body in (
        {"push": found["push"]},
        {"url": found["url"]},
        {"push": found["push"], "url": found["url"], "kind": "push"},
    ):
        for path in ("/streams/orders/consumers/ship", "/http-consumers/ship"):
            await api.call("PATCH", path, body)
    await api.call("PATCH", ONE[0], {"push": {"headers": found["push"]["headers"] | {"X-New": "1"}}})
    database = api.server.app.database
    spec, _ = await store.consumer_spec(database, await store.consumer_id(database, "orders", "ship"))
    assert spec.push == Push(url=URL, headers=HEADERS | {"X-New": "1"}, secret=SECRET)


@pytest.mark.parametrize(
    "push",
    [{"url": "https://hooks.example/…"}, {"headers": {"x-other": "…"}}, {"url": "https://other.example/…"}],
)  # fmt: skip
async def test_a_masked_value_of_nothing_is_refused(api: Api, push: dict[str, Any]) -> None:
    await api.stream()
    await api.refused("POST", "/streams/orders/consumers",
                      {"name": "ship", "kind": "push", "push": {"url": "https://hooks.example/x"} | push}, status=422)  # fmt: skip
    await api.consumer("ship", kind="push", push={"url": "https://hooks.example/"})
    await api.refused("PATCH", "/streams/orders/consumers/ship", {"push": push}, status=422)


async def test_what_is_logged_of_a_push_consumer_has_no_credentials(api: Api) -> None:
    push = Push(url=URL, headers=HEADERS, secret=SECRET)
    database = api.server.app.database
    await store.create_stream(database, "orders")
    await store.declare_consumer(
        database, ConsumerSpec(stream="orders", name="ship", push=Push(url="https://a/hidden"))
    )
    declared = await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship", push=push))
    for text in (repr(push), str(declared)):
        assert "hooks.example" in text
        assert not [word for word in HIDDEN if word in text]
