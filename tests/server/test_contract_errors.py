"""The contract's row about errors: one shape, and a status that separates errors of the client from
those of the server.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.model.errors import ERROR_CODES, ConfigurationError, HeadraceError
from headrace.server.errors import problem_of
from tests.server.calling import Api
from tests.support.paths import NAMES, filled

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.asyncio


async def test_a_body_that_is_not_json_is_400(api: Api) -> None:
    await api.stream()
    await api.consumer()
    for path in (
        "/streams",
        "/streams/orders/consumers",
        "/streams/orders/messages",
        "/streams/orders/consumers/ship/ack",
    ):
        for content in (b"{", b"\xff\xfe", b"nothing", b'{"a" 1}'):
            answer = await api.client.post(api.prefix + path, content=content)
            assert answer.status_code == 400, (path, content, answer.text)
            assert answer.json()["code"] == "malformed"


async def test_a_body_that_is_json_of_another_kind_is_422(api: Api) -> None:
    await api.stream()
    await api.consumer()
    for path in (
        "/streams",
        "/streams/orders/consumers",
        "/streams/orders/messages",
        "/streams/orders/consumers/ship/ack",
    ):
        for content in (b"[]", b"1", b'"text"', b"null"):
            answer = await api.client.post(api.prefix + path, content=content)
            assert answer.status_code == 422, (path, content, answer.text)
            assert answer.json()["validation_errors"]


async def test_a_missing_body_or_field_is_422_and_says_so(api: Api) -> None:
    answer = await api.refused("POST", "/streams", status=422)
    assert answer["validation_errors"] == {"body": ["The body is missing. Send a JSON object."]}
    answer = await api.refused("POST", "/streams", {}, status=422)
    assert answer["validation_errors"] == {"name": ["The field is missing."]}


async def test_an_unknown_path_is_404_and_an_unknown_method_405(api: Api) -> None:
    assert (await api.refused("GET", "/nothing", status=404))["code"] == "not_found"
    assert (await api.refused("GET", "/streams/a/b/c/d/e", status=404))["code"] == "not_found"
    body = await api.answer("DELETE", "/streams")
    assert body.status_code == 405
    assert body.json()["code"] == "method_not_allowed"
    assert "POST" in body.headers["allow"]
    answer = await api.client.get("/v2/streams")
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


async def test_an_unknown_consumer_names_the_stream_that_has_none(api: Api) -> None:
    await api.stream()
    for method, path in (
        ("GET", "/streams/orders/consumers/ship"),
        ("GET", "/streams/orders/consumers/ship/messages"),
        ("GET", "/streams/orders/consumers/ship/receive"),
        ("GET", "/streams/orders/consumers/ship/dead_letters"),
        ("POST", "/streams/orders/consumers/ship/pause"),
        ("DELETE", "/streams/orders/consumers/ship"),
    ):
        answer = await api.refused(method, path, status=404)
        assert answer["code"] == "unknown_consumer"
        assert "'ship'" in answer["summary"]
        assert "'orders'" in answer["summary"]


# --- codes


def _raised_codes() -> Iterator[tuple[int, str]]:
    """Yield status and code of each `Problem` that the server's code raises."""
    for path in sorted((ROOT / "framework" / "headrace" / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(getattr(node, "func", None), "id", None) or getattr(
                getattr(node, "func", None), "attr", None
            )
            if not isinstance(node, ast.Call) or name not in ("Problem", "__init__") or len(node.args) < 3:
                continue
            status, code = node.args[:2]
            if isinstance(status, ast.Constant) and isinstance(code, ast.Constant):
                yield status.value, code.value


async def test_the_codes_are_those_of_the_table() -> None:
    raised = set(_raised_codes())
    kinds = [HeadraceError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in kinds:
        if kind.__module__.startswith("headrace.model") and kind is not HeadraceError:
            with contextlib.suppress(TypeError, ConfigurationError):  # an error that takes other arguments
                problem = problem_of(kind("It is so."))
                raised.add((problem.status, problem.code))
    assert len(raised) > 30
    assert {(code.status, name) for name, code in ERROR_CODES.items()} == raised


async def test_the_description_lists_all_codes(api: Api) -> None:
    document = (await api.client.get("/openapi.json")).json()
    assert set(document["components"]["schemas"]["Error"]["properties"]["code"]["enum"]) == set(ERROR_CODES)


# --- fields

_SHIP = "/streams/orders/consumers/ship"
_NEW = "/streams/orders/consumers"

INVALID: list[tuple[str, str, Any, str]] = [
    ("POST", "/streams", {"name": "Up"}, "name"),
    ("POST", "/streams", {"name": "s", "retain_up_to": 0}, "retain_up_to"),
    ("POST", "/streams", {"name": "s", "retain_up_to": "soon"}, "retain_up_to"),
    ("POST", "/streams", {"name": "s", "max_storage": 1}, "max_storage"),
    ("POST", "/streams", {"name": "s", "dedupe": True}, "dedupe"),
    ("POST", "/streams", {"name": "s", "nope": 1}, "nope"),
    ("POST", "/streams", {"name": "s", "retention": "interest", "retain_up_to": 5}, "retention"),
    ("PATCH", "/streams/orders", {"name": "other"}, "name"),
    ("PATCH", "/streams/orders", {"one_message_per_key": True}, "one_message_per_key"),
    ("POST", _NEW, {"name": ""}, "name"),
    ("POST", _NEW, {"name": "a" * 201}, "name"),
    ("POST", _NEW, {"name": "c", "filter": "a..b"}, "filter"),
    ("POST", _NEW, {"name": "c", "filter_key_pattern": "a..b"}, "filter_key_pattern"),
    ("POST", _NEW, {"name": "c", "filters": []}, "filters"),
    ("POST", _NEW, {"name": "c", "filters": {"a": {}}}, "filters"),
    ("POST", _NEW, {"name": "c", "where": "data.n >"}, "where"),
    ("POST", _NEW, {"name": "c", "where": "data.n regex '('"}, "where"),
    ("POST", _NEW, {"name": "c", "ack_wait_ms": 1}, "ack_wait_ms"),
    ("POST", _NEW, {"name": "c", "ack_wait": "1ms"}, "ack_wait"),
    ("POST", _NEW, {"name": "c", "ack_wait": "soon"}, "ack_wait"),
    ("POST", _NEW, {"name": "c", "max_deliver": 0}, "max_deliver"),
    ("POST", _NEW, {"name": "c", "max_deliver": 1.5}, "max_deliver"),
    ("POST", _NEW, {"name": "c", "max_waiting": 0}, "max_waiting"),
    ("POST", _NEW, {"name": "c", "start_seq": 5}, "start_seq"),
    ("POST", _NEW, {"name": "c", "deliver_policy": "by_start_seq"}, "deliver_policy"),
    ("POST", _NEW, {"name": "c", "backoff_ms": -1}, "backoff_ms"),
    ("POST", _NEW, {"name": "c", "backoff": []}, "backoff"),
    ("POST", _NEW, {"name": "c", "rate_limit": 0}, "rate_limit"),
    ("POST", _NEW, {"name": "c", "rate_burst": 5}, "rate_burst"),
    ("POST", _NEW, {"name": "c", "kind": "push"}, "push"),
    ("POST", _NEW, {"name": "c", "push": {"url": "ftp://a"}}, "push"),
    ("POST", _NEW, {"name": "c", "push": {"url": "http://a", "timeout_ms": 0}}, "push"),
    ("PATCH", _SHIP, {"max_ack_pending": 0}, "max_ack_pending"),
    ("PATCH", _SHIP, {"deliver_policy": "new"}, "deliver_policy"),
    ("PATCH", _SHIP, {"ack_wait": -1}, "ack_wait"),
    ("POST", f"{_SHIP}/seek", {"to": "nowhere"}, "to"),
    ("POST", f"{_SHIP}/seek", {"to": -1}, "to"),
    ("POST", f"{_SHIP}/replay", {"filter": "a..b"}, "filter"),
    ("POST", f"{_SHIP}/replay", {"where": "nope"}, "where"),
    ("POST", f"{_SHIP}/replay", {"start_seq": 0}, "start_seq"),
    ("POST", f"{_SHIP}/replay", {"start_seq": 5, "end_seq": 4}, "end_seq"),
    ("POST", f"{_SHIP}/dead_letters/redrive", {"seqs": [0]}, "seqs[0]"),
    ("POST", f"{_SHIP}/dead_letters/redrive", {"key": "a..b"}, "key"),
    ("POST", f"{_SHIP}/dead_letters/purge", {"filter": ""}, "filter"),
    ("POST", f"{_SHIP}/pause", {"until": "soon"}, "until"),
    ("POST", f"{_SHIP}/receive", {"batch_size": 0}, "batch_size"),
    ("POST", f"{_SHIP}/receive", {"batch_size": 1001}, "batch_size"),
    ("POST", f"{_SHIP}/receive", {"batch_size": "x"}, "batch_size"),
    ("POST", f"{_SHIP}/receive", {"wait_for": "soon"}, "wait_for"),
    ("POST", f"{_SHIP}/receive", {"wait_for": 3_600_001}, "wait_for"),
    ("POST", f"{_SHIP}/ack", {"ack_ids": ["nope"]}, "ack_ids"),
    ("POST", f"{_SHIP}/ack", {"ack_tokens": ["nope"]}, "ack_tokens"),
    ("POST", f"{_SHIP}/ack", {"ack_ids": [1]}, "ack_ids[0]"),
    ("POST", f"{_SHIP}/ack", {"ack_ids": ["x"] * 10_001}, "ack_ids"),
    ("POST", f"{_SHIP}/nack", {"ack_ids": ["nope"]}, "ack_ids"),
    ("POST", f"{_SHIP}/nack", {"ack_ids": ["nope"], "delay_ms": -1}, "delay_ms"),
    ("POST", f"{_SHIP}/extend", {"ack_tokens": ["nope"]}, "ack_tokens"),
    ("GET", f"{_SHIP}/receive?batch_size=0", None, "batch_size"),
    ("GET", f"{_SHIP}/receive?batch_size=-1", None, "batch_size"),
    ("GET", f"{_SHIP}/receive?wait_for=soon", None, "wait_for"),
    ("GET", "/http-consumers/ship/next?batch_size=1001", None, "batch_size"),
    ("GET", "/http_pull_consumers/ship/receive?batch_size=x", None, "batch_size"),
    ("GET", f"{_SHIP}/messages?limit=0", None, "limit"),
    ("GET", f"{_SHIP}/messages?sort=up", None, "sort"),
    ("GET", f"{_SHIP}/dead_letters?filter=a..b", None, "filter"),
    ("GET", f"{_SHIP}/dead_letters?where=nope", None, "where"),
    ("GET", f"{_SHIP}/dead_letters?above=-1", None, "above"),
    ("GET", "/streams/orders/messages?key_pattern=a..b", None, "key_pattern"),
    ("GET", "/streams/orders/messages?filter=a..b", None, "filter"),
    ("GET", "/streams/orders/messages?filter=a&key_pattern=b", None, "key_pattern"),
    ("GET", "/streams/orders/messages?where=data.n", None, "where"),
    ("GET", "/streams/orders/messages?start_seq=0", None, "start_seq"),
    ("GET", "/streams/orders/messages/a..b", None, "key"),
    ("POST", "/streams/orders/messages", {"key": "a..b", "data": 1}, "key"),
    ("POST", "/streams/orders/messages", {"key": "a" * 1025, "data": 1}, "key"),
    ("POST", "/streams/orders/messages", {"key": "a"}, "data"),
    ("POST", "/streams/orders/messages", {"data": 1}, "key"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": "\0"}, "data"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "headers": 1}, "headers"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "message_id": ""}, "message_id"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "message_id": "x" * 257}, "message_id"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "delay_ms": -1}, "delay_ms"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "unique_key": ""}, "unique_key"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "unique_key": "x" * 257}, "unique_key"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "unique_key": "x", "message_id": "m"}, "unique_key"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "unique_while": "waiting"}, "unique_while"),
    ("POST", "/streams/orders/messages", {"key": "a", "data": 1, "unique_key": "x", "unique_while": "once"}, "unique_while"),
    ("POST", "/streams/orders/messages", {"messages": [{"key": "a", "data": 1}, {"key": "a", "data": 1, "unique_key": "x", "message_id": "m"}]}, "messages[1].unique_key"),
    ("POST", "/streams/orders/messages", {"messages": [{"key": "a", "data": 1, "unique_key": "x"}, {"key": "a", "data": 1, "unique_key": "y", "unique_while": "waiting"}]}, "messages"),
    ("POST", "/streams/orders/messages", {"messages": []}, "messages"),
    ("POST", "/streams/orders/messages", {"messages": [{"key": "a", "data": 1}, {"key": "*", "data": 1}]}, "messages[1].key"),
    ("POST", "/streams/orders/messages", {"messages": [{"key": "a", "data": 1, "headers": 1}]}, "messages[0].headers"),
    ("POST", "/streams/orders/republish", {"target": "orders", "where": "nope"}, "where"),
    ("POST", "/streams/orders/republish", {}, "target"),
    ("POST", "/streams/orders/erasures", {"seqs": []}, "seqs"),
    ("POST", "/streams/orders/erasures", {"seqs": [0]}, "seqs[0]"),
    ("POST", "/streams/orders/erasures", {"seqs": [1], "reason": "x" * 2001}, "reason"),
    ("POST", "/http-consumers", {"name": "c", "stream": "orders", "max_deliver": 0}, "max_deliver"),
    ("POST", "/http-consumers", {"name": "c", "stream": "orders", "filters": {"collection_id": None}}, "filters"),
    ("POST", "/sources", {"name": "Up", "stream": "orders"}, "name"),
    ("POST", "/sources", {"name": "h", "stream": "orders", "key": "{nope}"}, "key"),
    ("POST", "/sources", {"name": "h", "stream": "orders", "max_body": 0}, "max_body"),
    ("POST", "/sources", {"name": "h", "stream": "orders", "signature": "github"}, "secret"),
    ("POST", "/sources", {"name": "h", "stream": "orders", "keep_headers": ["a b"]}, "keep_headers"),
    ("POST", "/sources", {"kind": "postgres", "name": "h", "stream": "new", "tables": []}, "tables"),
    ("POST", "/sources", {"kind": "postgres", "name": "h", "stream": "new", "tables": ["a.b"], "where": "nope"}, "where"),
    ("POST", "/source-check", {"name": "h", "stream": "orders"}, "kind"),
    ("POST", "/tokens", {"name": "a b", "scopes": ["admin"]}, "name"),
    ("POST", "/tokens", {"name": "a", "scopes": []}, "scopes"),
    ("POST", "/tokens", {"name": "a", "scopes": ["all"]}, "scopes"),
    ("POST", "/tokens", {"name": "a", "scopes": ["admin"], "expires_in_ms": 0}, "expires_in_ms"),
]  # fmt: skip


async def test_what_is_invalid_is_named_under_the_name_that_was_sent(api: Api) -> None:
    await api.stream()
    await api.consumer()
    wrong = []
    for method, path, body, field in INVALID:
        answer = await api.answer(method, path, body)
        found = answer.json()
        if answer.status_code != 422 or list(found.get("validation_errors", ())) != [field]:
            wrong.append((method, path, str(body)[:100], field, answer.status_code, found))
            continue
        (sentences,) = found["validation_errors"].values()
        assert sentences
        assert all(isinstance(one, str) and one for one in sentences)
    assert not wrong, "\n".join(map(str, wrong))


# --- query parameters


async def test_an_unknown_query_parameter_is_refused_and_the_known_ones_are_named(api: Api) -> None:
    await api.stream()
    await api.consumer()
    document = (await api.client.get("/openapi.json")).json()
    asked = 0
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if not path.startswith("/v1/") or operation["operationId"] == "deliver":
                continue
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            answer = await api.client.request(method, filled(path) + "?limti=5", json=body)
            assert answer.status_code == 422, (method, path, answer.text)
            found = answer.json()
            assert list(found["validation_errors"]) == ["limti"], (method, path)
            known = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
            assert all(name in found["validation_errors"]["limti"][0] for name in known), (method, path, found)
            asked += 1
    assert asked > 60
    assert (await api.client.get("/ready?exclud=sources")).status_code == 422


async def test_one_filter_has_one_name_and_its_older_one_still_works(api: Api) -> None:
    await api.stream()
    await api.publish(("a.1", 1), ("b.1", 2))
    for name in ("filter", "key_pattern"):
        answer = await api.get(f"/streams/orders/messages?{name}=b.*")
        assert [one["key"] for one in answer["data"]] == ["b.1"]
    document = (await api.client.get("/openapi.json")).json()
    for path, item in document["paths"].items():
        for operation in item.values():
            names = {one["name"] for one in operation.get("parameters", ())}
            assert "key_pattern" not in names or "filter" in names, path


# --- what exists


async def test_creating_what_exists_gets_one_error_everywhere(api: Api) -> None:
    """One code and one shape. The fields that differ are named, so no field means that it is the same."""
    await api.stream()
    hook = {"name": "hook", "stream": "orders"}
    push = {"name": "pushed", "push": {"url": "http://example.com/a", "shape": "message"}}
    http = {"name": "http", "stream": "orders", "filters": {"a": "x"}}
    token = {"name": "ci", "scopes": ["admin"]}
    created: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
        ("/streams", {"name": "s"}, {"retain_up_to": 60}, ["retain_up_to"]),
        ("/streams/orders/consumers", {"name": "ship"}, {"max_deliver": 5, "ack_wait": 60}, ["max_deliver", "ack_wait"]),
        ("/streams/orders/consumers", push, {"push": {"url": "http://example.com/b", "shape": "message"}}, ["push"]),
        ("/http-consumers", http, {"filters": {"a": "y"}}, ["where"]),
        ("/sources", hook, {"max_body": 7}, ["max_body"]),
    ]  # fmt: skip
    for path, body, others, differing in created:
        await api.post(path, body, 201)
        same = await api.refused("POST", path, body, status=409)
        assert (same["code"], set(same)) == ("exists", {"code", "summary"}), path
        other = await api.refused("POST", path, {**body, **others}, status=409)
        assert (other["code"], sorted(other["validation_errors"])) == ("exists", sorted(differing)), path
    answer = await api.client.post("/v1/tokens", json=token)
    headers = {"authorization": f"Bearer {answer.json()['token']}"}
    again = await api.client.post("/v1/tokens", json=token, headers=headers)
    assert (again.status_code, again.json()["code"]) == (409, "exists")


@pytest.mark.long
async def test_a_nul_anywhere_is_an_error_in_our_own_words(api: Api) -> None:
    """Postgres accepts none, not even in a query."""
    await api.stream()
    await api.consumer()
    document = (await api.client.get("/openapi.json")).json()
    asked = 0

    async def ask(method: str, path: str, body: Any, **query: str) -> None:
        nonlocal asked
        answer = await api.client.request(method, path, json=body, params=query or None)
        told = (method, path, str(body)[:200], query, answer.text)
        assert answer.status_code < 500, told
        assert "byte sequence" not in answer.text, told
        if answer.status_code == 422:
            assert answer.json()["validation_errors"], told
        asked += 1

    for path, item in document["paths"].items():
        for method, operation in item.items():
            if not path.startswith("/v1/") or operation["operationId"] in ("deliver", "create_token"):
                continue
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            body = content.get("example")
            for name in NAMES:
                if f"{{{name}}}" in path and name != "seq":
                    await ask(method, filled(path, **{name: "a%00b"}), body)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query":
                    await ask(method, filled(path), body, **{parameter["name"]: "a\0"})
            for name in _fields_of(content.get("schema", {}), document):
                await ask(method, filled(path), {**(body or {}), name: "a\0"})
                await ask(method, filled(path), {**(body or {}), name: ["a\0"]})
    assert asked > 300


def _fields_of(schema: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """Return the names of the fields of a request's body."""
    found = []
    for one in (schema, *schema.get("anyOf", ())):
        if "$ref" in one:
            found += list(document["components"]["schemas"][one["$ref"].rpartition("/")[2]]["properties"])
    return found
