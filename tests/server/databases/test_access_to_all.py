"""Tokens hold across all databases, and a server opens only what its operator allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.calling import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_only_what_the_operator_allows_is_resolved(two: Api, tmp_path: Path) -> None:
    for reference in ("env:PATH", "file:/etc/passwd", f"file:{tmp_path}/x"):
        refused = await two.refused("POST", "/databases", {"name": "x", "url_from": reference}, status=403)
        assert "--database-references" in refused["summary"]
    for wrong in ("postgresql://me:secret@host/db", "EU", "env:", "file:relative"):
        refused = await two.refused("POST", "/databases", {"name": "x", "url_from": wrong}, status=422)
        assert "secret" not in json.dumps(refused)
    refused = await two.refused("POST", "/databases", {"name": "x", "url_from": "env:HR_TEST_NONE"}, status=422)
    assert "HR_TEST_NONE is not set" in refused["summary"]


async def test_the_same_database_is_not_added_twice(two: Api, home_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_TEST_SAME", home_dsn)
    refused = await two.refused("POST", "/databases", {"name": "same", "url_from": "env:HR_TEST_SAME"}, status=422)
    assert "server's own database" in refused["summary"]
    assert (await two.refused("POST", "/databases", {"name": "eu", "url_from": "env:HR_TEST_EU"}, status=409))[
        "code"
    ] == "exists"


async def test_a_database_is_shown_and_checked_without_its_url(two: Api, eu_dsn: str) -> None:
    shown = [await two.get("/databases"), await two.get("/databases/eu"), await two.post("/databases/eu/check")]
    assert eu_dsn not in json.dumps(shown)
    assert [one["url_from"] for one in shown[0]["data"]] == ["env:HR_TEST_EU"]
    assert shown[2]["streams"] == 1
    assert (await two.refused("GET", "/databases/nope", status=404))["code"] == "unknown_database"


async def test_tokens_hold_across_all_databases(two: Api) -> None:
    def bearer(token: str) -> dict[str, str]:
        return {"authorization": f"Bearer {token}"}

    mine = (await two.post("/tokens", {"name": "mine", "scopes": ["publish:visits"]}, 201))["token"]
    other = await two.client.post("/v1/tokens", json={"name": "b", "scopes": ["publish:orders"]}, headers=bearer(mine))
    assert other.status_code == 403
    send = json.dumps({"messages": [{"key": "a", "data": 1}]})
    for stream, status in (("visits", 200), ("orders", 403)):
        answer = await two.client.post(f"/v1/streams/{stream}/messages", content=send, headers=bearer(mine))
        assert answer.status_code == status, answer.text
    assert (await two.client.post("/v1/streams/visits/messages", content=send)).status_code == 401
    assert (await two.client.get("/v1/databases", headers=bearer(mine))).status_code == 403
