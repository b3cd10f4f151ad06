"""The API's description is complete, and the server's answers to valid and invalid requests agree with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from schemathesis import GenerationMode

from tests.server.calling import Api
from tests.server.described import ask, operations_of
from tests.support import servers
from tests.torture.http_servers import ServerProcess

EXAMPLES = 5
"""Number of generated requests for each operation, valid and invalid ones each."""

PARTS = 4
"""A test asks every fourth operation, since all of them would take a loaded machine longer than a test may take."""

_METHODS = {"get", "post", "put", "patch", "delete"}


@pytest.fixture
def url(server_dsn: str, template: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a server for these tests only."""
    with servers.clone(server_dsn, template) as dsn:
        server = ServerProcess(dsn, tmp_path / "server.log")
        try:
            server.start()
            yield server.url
        finally:
            assert server.stop() == 0, server.last_words()


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


@pytest.mark.asyncio
async def test_the_description_explains_every_operation_in_words(api: Api) -> None:
    answer = await api.client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["openapi"] == "3.1.0"
    assert document["info"]["title"] == "Headrace"
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    ids = []
    for path, method, operation in _operations(document):
        assert method in _METHODS
        assert operation["summary"], path
        assert set(operation["tags"]) <= {tag["name"] for tag in document["tags"]}, path
        ids.append(operation["operationId"])
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (path, parameter["name"])
    assert len(ids) == len(set(ids))


@pytest.mark.asyncio
async def test_every_body_has_an_example_that_its_schema_allows(api: Api) -> None:
    document = (await api.client.get("/openapi.json")).json()
    for path, method, operation in _operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None and operation["operationId"] != "deliver":
            assert "example" in content, (method, path)
            schema = {**content["schema"], "components": document["components"]}
            jsonschema_rs.validate(schema, content["example"])


@pytest.mark.asyncio
async def test_a_name_that_several_streams_have_is_refused_as_described(api: Api) -> None:
    for stream in ("mystream", "o"):
        await api.stream(stream)
        await api.consumer("us_orders", stream)
    document = (await api.client.get("/openapi.json")).json()
    for method in ("GET", "POST"):
        await api.refused(method, "/consumers/us_orders/receive", status=409)
        path = next(path for path in document["paths"] if re.fullmatch(r"/v1/consumers/\{[^/]*\}/receive", path))
        assert "409" in document["paths"][path][method.lower()]["responses"]


@pytest.mark.asyncio
async def test_every_path_is_there_under_both_prefixes(api: Api) -> None:
    document = (await api.client.get("/openapi.json")).json()
    for path, method, _ in _operations(document):
        if not path.startswith("/v1/"):
            continue
        existing = path.replace("{seq}", "1").replace("{", "").replace("}", "")
        body = []
        for prefix in ("/v1/", "/api/"):
            answer = await api.client.request(method, prefix + existing.removeprefix("/v1/"), content=b"")
            assert answer.status_code < 500
            body.append((answer.status_code, answer.json() if "consumer" in path else None))
        assert body[0] == body[1], path
        assert body[0][0] != 405, path


@pytest.mark.asyncio
async def test_the_page_to_read_it_needs_nothing_from_elsewhere(api: Api) -> None:
    answer = await api.client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert 'fetch("openapi.json")' in answer.text
    for outside in ("src=", "@import", "//cdn", 'href="http'):
        assert outside not in answer.text


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_the_server_answers_as_it_is_described_whatever_is_asked(url: str, part: int) -> None:
    operations = operations_of(url)
    assert len(operations) > 55
    for operation in operations[part::PARTS]:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            ask(url, operation, mode, EXAMPLES)
