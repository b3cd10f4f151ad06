"""The examples of docs/server.md, run as servers. The API is below its path, beside the shop's own routes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.processes import Commands, Running

ROOT = Path(__file__).parents[2]

Serve = Callable[[str], tuple[Running, httpx.Client]]


@pytest.fixture
def serve(dsn: str, tmp_path: Path) -> Iterator[Serve]:
    """Start an example under uvicorn, with a client. Examples that still run at the end are killed."""
    with Commands(tmp_path) as commands:
        environment = {**commands.environment(), "HEADRACE_DATABASE": dsn}
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    running: list[Running] = []
    clients: list[httpx.Client] = []

    def start(example: str) -> tuple[Running, httpx.Client]:
        words = ("uvicorn", f"examples.embedding.{example}:web", "--port", "0")
        running.append(Running(words, tmp_path, environment, module=None))
        url = running[-1].line("Uvicorn running on").partition("running on ")[2].split()[0]
        clients.append(httpx.Client(base_url=url, timeout=30))
        return running[-1], clients[-1]

    yield start
    for client in clients:
        client.close()
    for one in running:
        one.close()


@pytest.mark.parametrize("example", ["fastapi", "starlette", "litestar", "asgi"])
def test_the_api_is_there_below_its_path(serve: Serve, example: str) -> None:
    running, client = serve(f"server_mounted_{example}")
    if example == "starlette":
        assert client.get("/headrace/v1/streams").status_code == 403
        client.headers["x-shop"] = "staff"
    elif example != "fastapi":
        assert client.get("/").text == "a shop"
    assert client.get("/headrace/ready").json()["ready"] is True
    message = {"key": "orders.1", "data": {"id": 1, "items": ["a hat"]}}
    sent = client.post("/headrace/v1/streams/orders/messages", json=message)
    assert sent.json() == {"data": {"published": 1}}
    if example == "fastapi":
        running.line("shipped order 1")
        assert client.get("/orders/1").json() == {"shipped": True}
    created = client.post("/headrace/v1/streams/orders/consumers", json={"name": "look"})
    assert created.status_code == 201
    [got] = client.get("/headrace/v1/streams/orders/consumers/look/receive").json()["data"]
    assert got["message"]["data"] == message["data"]
    running.send(signal.SIGINT)
    running.line("Application shutdown complete")
    assert running.end() in (0, -signal.SIGINT, 130)
    assert not any("Traceback" in line or "ERROR" in line for line in running.lines)


def test_the_documentation_names_the_examples() -> None:
    text = (ROOT / "docs/server.md").read_text(encoding="utf-8")
    for example in sorted((ROOT / "examples/embedding").glob("server_mounted_*.py")):
        assert f"examples/embedding/{example.name}" in text, example.name
