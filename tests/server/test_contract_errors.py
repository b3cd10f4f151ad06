"""The contract's row about errors: one shape, and a status that separates errors of the client from
those of the server.
"""

from __future__ import annotations

import pytest

from tests.server.calling import Api

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
