"""The plugin's fixtures on the server that all tests of this repository share, and a small app."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import App
from headrace.testing import Harness, Server
from tests.testing import projects


@pytest.fixture
def harness(server_dsn: str, dsn: str) -> Callable[..., Harness]:
    """The plugin's `harness` on this repository's server."""

    def harness(app: App, **options: Any) -> Harness:
        return Harness(app, dsn, **options)

    return harness


@pytest.fixture
def server(server_dsn: str) -> Server:
    return Server(server_dsn)


@pytest.fixture
def app() -> App:
    """An app with a URL that leads to no database, so that it works only with the harness."""
    return App("postgresql://nobody@nowhere.invalid/nothing", streams=["orders", "parcels"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an app and no tests yet, in an environment without variables for pytest or Headrace."""
    for name in ("HEADRACE_TEST_DATABASE", "HEADRACE_DATABASE", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    project = tmp_path / "project"
    project.mkdir()
    projects.make(project)
    return project
