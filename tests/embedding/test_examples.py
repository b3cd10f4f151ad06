"""The examples of docs/embedding.md, run as servers and programs. An order over HTTP is shipped, and
the exit is clean.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.processes import PATIENCE, Commands, Running

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(dsn: str, tmp_path: Path) -> dict[str, str]:
    with Commands(tmp_path) as commands:
        variables = commands.environment()
    variables["PYTHONPATH"] += os.pathsep + str(ROOT)
    return {**variables, "HEADRACE_DATABASE": dsn}


Serve = Callable[..., Running]


@pytest.fixture
def serve(environment: dict[str, str], tmp_path: Path) -> Iterator[Serve]:
    """Start `python -m …`. Programs that still run at the end are killed."""
    running: list[Running] = []

    def start(*words: str) -> Running:
        running.append(Running(words, tmp_path, environment, module=None))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _an_order_is_shipped(server: Running, url: str) -> None:
    assert httpx.post(f"{url}/orders", json={"id": 17, "items": ["a hat"]}).status_code == 202
    server.line("shipped order 17")
    assert httpx.get(f"{url}/orders/17").json() == {"shipped": True}
    assert httpx.get(f"{url}/orders/18").json() == {"shipped": False}
    answer = httpx.get(f"{url}/ready")
    assert (answer.status_code, answer.json()["ready"]) == (200, True)


@pytest.mark.parametrize(
    ("example", "loop"),
    [("fastapi_app", "uvloop"), ("fastapi_app", "asyncio"), ("litestar_app", "uvloop"), ("starlette_app", "asyncio")],
)
def test_an_order_that_comes_in_by_http_is_shipped(serve: Serve, port: int, example: str, loop: str) -> None:
    server = serve("uvicorn", f"examples.embedding.{example}:web", "--port", str(port), "--loop", loop)
    server.line("Application startup complete")
    server.line("Uvicorn running")
    _an_order_is_shipped(server, f"http://127.0.0.1:{port}")
    server.send(signal.SIGINT)
    server.line("Application shutdown complete")
    assert server.end() in (0, -signal.SIGINT, 130)
    assert not any("Traceback" in line or "ERROR" in line for line in server.lines)


def test_aiohttp_s_own_server_takes_it_along(serve: Serve, port: int) -> None:
    server = serve("aiohttp.web", "-H", "127.0.0.1", "-P", str(port), "examples.embedding.aiohttp_app:make")
    server.line("Running on")
    _an_order_is_shipped(server, f"http://127.0.0.1:{port}")
    server.send(signal.SIGINT)
    assert server.end() == 0
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.parametrize("program", ["asyncio_program", "anyio_program"])
def test_a_plain_program_works_off_what_it_publishes(environment: dict[str, str], program: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"examples.embedding.{program}"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == ["shipped order 1", "shipped order 2", "shipped order 3"]


def test_the_documentation_shows_the_examples_as_they_are() -> None:
    text = (ROOT / "docs/embedding.md").read_text(encoding="utf-8")
    for example in sorted((ROOT / "examples/embedding").glob("*.py")):
        assert f"examples/embedding/{example.name}" in text, example.name
