"""The contract's rows about sources: create, list, read, edit, delete."""

from __future__ import annotations

import json

import pytest

from tests.server.calling import Api
from tests.server.delivering import OK, deliver, source
from tests.sources.test_signatures import signed

pytestmark = pytest.mark.asyncio


async def test_a_source_is_returned_with_its_settings_but_for_its_secret(api: Api) -> None:
    stream = await api.stream()
    created = await source(
        api, "github", stream["id"], key="gh.{header.x-github-event}", signature="github", secret="hush",
        keep_headers=["X-GitHub-Event"], max_body=1000,
    )  # fmt: skip
    assert "hush" not in json.dumps(created)
    assert created["inserted_at"] == created["updated_at"]
    info = created.pop("info")
    assert {name: created[name] for name in created if name not in ("id", "inserted_at", "updated_at")} == {
        "name": "github", "kind": "webhook", "stream": "orders", "stream_id": stream["id"], "path": "/api/webhook/github",
        "key": "gh.{header.x-github-event}", "signature": "github", "secret": "…", "secrets": ["…"],
        "keep_headers": ["x-github-event"], "max_body": 1000,
    }  # fmt: skip
    assert (info["id"], info["settings"]["secrets"]) == (created["id"], ["…"])
    created["info"] = info
    for ref in ("github", created["id"]):
        assert await api.get(f"/sources/{ref}") == created
    assert await api.get("/sources") == {"data": [created]}
    again = {name: created[name] for name in ("kind", "name", "stream", "key", "signature", "keep_headers", "max_body")}
    answer = await api.refused("POST", "/sources", {**again, "secret": "hush"}, status=409)
    assert (answer["code"], "validation_errors" in answer) == ("exists", False)


async def test_a_change_leaves_what_it_does_not_name(api: Api) -> None:
    await api.stream()
    created = await source(api, signature="github", secret="hush", max_body=1000)
    for method in ("PATCH", "PUT"):
        answer = await api.call(
            method, f"/sources/{created['id']}", {"key": f"{{name}}.{method.lower()}", "secret": "…"}
        )
        assert (answer["key"], answer["signature"], answer["max_body"]) == (
            f"{{name}}.{method.lower()}",
            "github",
            1000,
        )
    assert (await deliver(api, b"{}", headers=signed("github", "hush", b"{}", 0))).json() == OK
    assert (await api.call("PATCH", "/sources/hook", {"max_body": None}))["max_body"] is None


REFUSED = [
    ({"name": "Up"}, 422), ({"stream": "nope"}, 404), ({"key": "{nope}"}, 422), ({"signature": "github"}, 422),
    ({"signature": "sha1", "secret": "x"}, 422), ({"secret": "x"}, 422), ({"max_body": 0}, 422), ({"max_body": "x"}, 422),
    ({"keep_headers": ["a b"]}, 422), ({"kind": "postgres"}, 422), ({"nope": 1}, 422), ({"name": None}, 422),
    ({"stream": "\0"}, 404), ({"key": "\0"}, 422), ({"signature": "github", "secret": "\0"}, 422), ({"secrets": "x"}, 422),
    ({"signature": "github", "secret": "…"}, 422), ({"max_body": 2**70}, 422), ({"keep_headers": ["x"] * 100}, 422),
    ({"signature": "github", "secret": "x", "secrets": ["y"]}, 422), ({"name": "hook", "max_body": 7}, 409),
]  # fmt: skip


async def test_invalid_input_is_refused_and_changes_nothing(api: Api) -> None:
    await api.stream()
    await source(api)
    before = await api.get("/sources")
    for settings, status in REFUSED:
        given = {"kind": "webhook", "name": "new", "stream": "orders", **settings}
        await api.refused("POST", "/sources", given, status=status)
    answer = await api.refused("PATCH", "/sources/hook", {"stream": "orders"}, status=422)
    assert "stream" in answer["summary"]
    for method in ("GET", "PATCH", "DELETE"):
        answer = await api.refused(method, "/sources/nope", {} if method == "PATCH" else None, status=404)
        assert answer["code"] == "unknown_source"
    assert await api.get("/sources") == before


async def test_sending_needs_no_token_and_managing_sources_does(api: Api) -> None:
    await api.stream()
    await api.stream("parcels")
    await source(api)
    everything = (await api.post("/tokens", {"name": "all", "scopes": ["admin"]}, 201))["token"]
    parcels = (await api.server.app.admin.create_token("parcels", ["admin:parcels"])).token
    publisher = (await api.server.app.admin.create_token("publisher", ["publish", "consume"])).token

    async def statuses(token: str | None) -> list[int]:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        calls = [
            ("GET", "/sources", None), ("GET", "/sources/hook", None), ("PATCH", "/sources/hook", {"max_body": 9}),
            ("DELETE", "/sources/nope", None), ("GET", "/sources/nope", None),
            ("POST", "/sources", {"name": "other", "stream": "orders"}),
        ]  # fmt: skip
        return [
            (await api.client.request(method, api.prefix + path, json=body, headers=headers)).status_code
            for method, path, body in calls
        ]

    assert await statuses(None) == [401] * 6
    assert await statuses(publisher) == await statuses(parcels) == [403] * 6
    assert (await deliver(api, b"{}")).json() == OK
    assert await statuses(everything) == [200, 200, 200, 404, 404, 201]
