"""A token for one stream learns nothing about others, and no name hijacks what an id or another stream's name means."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import store
from headrace.model.errors import InvalidInput
from headrace.model.keys import looks_like_id
from headrace.model.schedules import ScheduleSpec
from headrace.model.specs import ConsumerSpec
from tests.server.calling import Api
from tests.support.paths import NAMES, filled

UNNAMED = {"health", "ready", "metrics", "deliver"}
"""Operations that need no token, or one for all streams."""


async def _as(api: Api, *scopes: str) -> dict[str, str]:
    """Return the headers of a client with a new token."""
    name = "t" + uuid4().hex
    created = await api.call("POST", "/tokens", {"name": name, "scopes": list(scopes)}, 201)
    return {"authorization": f"Bearer {created['token']}"}


async def _two_tenants(api: Api) -> dict[str, Any]:
    """Create the streams of two tenants, with a token for one of them."""
    mine, theirs = await api.stream("mine"), await api.stream("theirs")
    await api.consumer("shown", "mine")
    secret = await api.consumer("secret", "theirs")
    await api.publish(("a", 1), stream="theirs")
    hook = await api.post("/sources", {"kind": "webhook", "name": "hookit", "stream": "theirs"}, 201)
    daily = ScheduleSpec(name="daily", stream="theirs", every="@daily", key="daily")
    await store.declare_schedule(api.server.app.database, daily)
    job = await api.post("/jobs", {"kind": "redrive", "stream": "theirs", "consumer": "secret"}, 201)
    api.client.headers.update(await _as(api, "admin"))
    tenant = await _as(api, "admin:mine")
    return {"mine": mine, "theirs": theirs, "secret": secret, "hook": hook, "job": job["data"], "tenant": tenant}


async def _answer(api: Api, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
    answer = await api.client.request(method, path, json=body, headers=headers)
    return answer.status_code, answer.json()


@pytest.mark.asyncio
async def test_what_exists_elsewhere_is_answered_like_what_does_not_exist(api: Api) -> None:
    found = await _two_tenants(api)
    document = (await api.client.get("/openapi.json")).json()
    # Existing and missing objects, and both again by id, as the names in a path.
    pairs: dict[str, list[tuple[str, str]]] = {
        "stream": [("theirs", "absent"), (found["theirs"]["id"], str(uuid4()))],
        "consumer": [("secret", "absent"), (found["secret"]["id"], str(uuid4())), ("theirs:secret", "absent:secret")],
        "source": [("hookit", "absent"), (found["hook"]["id"], str(uuid4()))],
        "token": [("nobody", "absent")],
        "schedule": [("daily", "absent")],
        "database": [("eu", "absent")],
        "job": [(found["job"]["id"], str(uuid4()))],
    }
    compared = 0
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if operation["operationId"] in UNNAMED or "{" not in path:
                continue
            kind = next(one for one in NAMES if f"{{{one}}}" in path)
            names = {"stream": "theirs", "consumer": "secret", "source": "hookit"}
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            for real, unreal in pairs[kind]:
                answers = []
                for name in (real, unreal):
                    url = filled(path, **{**names, kind: name})
                    status, answer = await _answer(api, method, url, body, found["tenant"])
                    answers.append(
                        (status, answer["code"], answer["summary"].replace(name.partition(":")[0], "NAME"), set(answer))
                    )
                assert answers[0] == answers[1], (method, path, real)
                assert answers[0][0] == 403, (method, path, answers[0])
                compared += 1
    assert compared > 100


@pytest.mark.asyncio
async def test_a_token_for_one_stream_causes_no_look_up_of_another(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _two_tenants(api)
    database = api.server.app.database
    statements: list[tuple[Any, ...]] = []
    asking = ContextVar("asking", default=False)  # inherited by what requests start, not by the server's own look-ups
    for name in ("fetch", "fetchrow", "fetchval"):
        real = getattr(database, name)

        async def counted(query: str, *args: Any, real: Any = real, **options: Any) -> Any:
            if "uid::text" in query and asking.get():
                statements.append(args)
            return await real(query, *args, **options)

        monkeypatch.setattr(database, name, counted)
    await _answer(api, "GET", "/v1/streams/mine", None, found["tenant"])
    asking.set(True)
    for path in ("/v1/streams/{}/consumers/a/receive", "/v1/streams/{}", "/v1/streams/{}/messages/a"):
        for name in ("theirs", "absent", found["theirs"]["id"], str(uuid4())):
            statements.clear()
            await _answer(api, "GET", path.format(name), None, found["tenant"])
            assert not [args for args in statements if name in args], (path, name)
    asking.set(False)
    counts = []
    for name in ("secret", "absent", found["secret"]["id"], str(uuid4())):
        api.server.engine.clear_caches()
        statements.clear()
        asking.set(True)
        await _answer(api, "GET", f"/v1/http-consumers/{name}/next", None, found["tenant"])
        asking.set(False)
        counts.append(len(statements))
    assert len(set(counts)) == 1, counts
    assert counts[0] > 0


@pytest.mark.asyncio
async def test_no_error_names_the_streams_of_others(api: Api) -> None:
    found = await _two_tenants(api)
    await api.stream("mine2")
    tenant = await _as(api, "admin:mine", "admin:mine2")
    status, answer = await _answer(api, "POST", "/v1/http-consumers", {"name": "c"}, tenant)
    assert status == 422
    assert "mine, mine2" in answer["summary"]
    assert "theirs" not in answer["summary"]
    source = {"kind": "webhook", "name": "hookit", "stream": "mine", "max_body": 7}
    status, answer = await _answer(api, "POST", "/v1/sources", source, found["tenant"])
    assert (status, answer["code"]) == (409, "exists")
    assert "theirs" not in str(answer)
    assert "validation_errors" not in answer


@pytest.mark.asyncio
async def test_a_name_that_others_use_too_does_not_disturb_a_client_with_a_token(api: Api) -> None:
    found = await _two_tenants(api)
    await api.consumer("sync", "mine")
    await api.consumer("sync", "theirs")
    await api.publish(("a", "theirs"), stream="theirs")
    await api.publish(("a", "mine"), stream="mine")
    status, answer = await _answer(api, "GET", "/v1/http-consumers/sync/next", None, found["tenant"])
    assert (status, [one["record"]["data"] for one in answer["data"]]) == (200, ["mine"])
    ack = {"ack_tokens": [answer["data"][0]["ack_token"]]}
    assert (await _answer(api, "POST", "/api/http_pull_consumers/sync/ack", ack, found["tenant"]))[0] == 200
    changed = await _answer(api, "PATCH", "/v1/http-consumers/sync", {"max_deliver": 3}, found["tenant"])
    assert (changed[0], changed[1]["stream"]) == (200, "mine")
    # A token for both streams has to choose.
    both = await _as(api, "consume:mine", "consume:theirs")
    status, answer = await _answer(api, "GET", "/v1/http-consumers/sync/next", None, both)
    assert (status, answer["code"]) == (409, "ambiguous")
    assert (await _answer(api, "GET", "/v1/http-consumers/theirs:sync/next", None, both))[0] == 200


def _spellings(id_: UUID) -> list[str]:
    return [str(id_), id_.hex, str(id_).upper(), f"{{{id_}}}", id_.urn, f"{{{id_.hex.upper()}}}", f"uuid:{id_}"]


@pytest.mark.asyncio
async def test_a_name_that_looks_like_an_id_is_refused_however_it_is_spelled(api: Api) -> None:
    await api.stream("mine")
    await api.stream("theirs")
    theirs = await api.consumer("sync", "theirs")
    for name in _spellings(UUID(theirs["id"])):
        for path in ("/streams/mine/consumers", "/http-consumers"):
            answer = await api.refused(
                "POST", path, {"name": name, **({} if "/s" in path else {"stream": "mine"})}, status=422
            )
            assert list(answer["validation_errors"]) == ["name"], name
            assert "looks like an id" in answer["summary"]
        with pytest.raises(InvalidInput, match="looks like an id"):
            await api.server.app.admin.create_consumer(ConsumerSpec(stream="mine", name=name))
        with pytest.raises(InvalidInput):
            await api.server.app.admin.create_stream(name)
    for name in (theirs["id"], UUID(theirs["id"]).hex):
        answer = await api.refused("POST", "/streams", {"name": name}, status=422)
        assert list(answer["validation_errors"]) == ["name"]
    with pytest.raises(InvalidInput, match="looks like an id"):
        await api.server.app.database.fetchval("select headrace.create_stream($1)", UUID(theirs["id"]).hex)
    await api.consumer("c" + theirs["id"], "mine")


@pytest.mark.asyncio
async def test_an_id_wins_over_an_older_name_that_equals_it(api: Api) -> None:
    await api.stream("mine")
    await api.stream("theirs")
    theirs = await api.consumer("sync", "theirs")
    old = await api.consumer("old", "mine")
    database = api.server.app.database
    await database.fetchval("update headrace_internal.consumers set name = $1 where name = 'old'", theirs["id"])
    stream = await api.stream("old")
    await database.fetchval("update headrace_internal.streams set name = $1 where name = 'old'", theirs["stream_id"])
    api.server.engine.clear_caches()
    assert (await api.get(f"/http-consumers/{theirs['id']}"))["id"] == theirs["id"]
    assert (await api.get(f"/streams/{theirs['stream_id']}"))["name"] == "theirs"
    assert (await api.get(f"/streams/{theirs['stream_id']}/consumers/sync"))["id"] == theirs["id"]
    # The older ones still work by their own ids, and by stream and name.
    assert (await api.get(f"/streams/mine/consumers/{theirs['id']}"))["id"] == old["id"]
    assert (await api.get(f"/streams/{stream['id']}"))["id"] == stream["id"]
    await api.publish(("a", 1), stream="mine")
    assert len(await api.receive(theirs["id"], "mine")) == 1
    # An app may declare its older consumer again.
    assert not await api.server.app.admin.create_consumer(ConsumerSpec(stream="mine", name=theirs["id"]))


@pytest.mark.unit
@given(st.uuids(), st.data())
@settings(max_examples=100, deadline=None)
def test_every_spelling_that_python_reads_looks_like_an_id(id_: UUID, data: st.DataObject) -> None:
    digits = data.draw(st.lists(st.sampled_from(["", "-", "{", "}", "urn:", "uuid:"]), min_size=33, max_size=33))
    text = "".join(a + b for a, b in zip(digits, id_.hex + " ", strict=True)).rstrip()
    text = data.draw(st.sampled_from([text, text.upper()]))
    try:
        UUID(text)
    except ValueError:
        return
    assert looks_like_id(text)


@pytest.mark.unit
@pytest.mark.parametrize("name", ["orders", "a" * 32 + "x", "deadbeef", "us_orders", "0" * 31, "f" * 33])
def test_other_names_do_not_look_like_ids(name: str) -> None:
    assert not looks_like_id(name)


@pytest.mark.asyncio
async def test_sql_and_python_agree_on_what_looks_like_an_id(api: Api) -> None:
    id_ = uuid4()
    names = [*_spellings(id_), str(id_)[:-1], str(id_) + "0", "orders", "a_b", str(id_).replace("-", "_"), f" {id_} "]
    names += ["-".join(id_.hex[n : n + 4] for n in range(0, 32, 4)), id_.hex[:31] + "g"]
    for name in names:
        found = await api.server.app.database.fetchval("select headrace_internal.looks_like_id($1)", name)
        assert found == looks_like_id(name), name
