"""The plugin's fixtures, on the server that all of our tests share; and a small app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import App
from headrace.testing import Harness, Server


@pytest.fixture
def harness(server_dsn: str, dsn: str) -> Callable[..., Harness]:
    """As the plugin's, on our own server."""

    def harness(app: App, **options: Any) -> Harness:
        return Harness(app, dsn, **options)

    return harness


@pytest.fixture
def server(server_dsn: str) -> Server:
    return Server(server_dsn)


@pytest.fixture
def app() -> App:
    """An app that would connect to nothing, were it not for the harness."""
    return App("postgresql://nobody@nowhere.invalid/nothing", streams=["orders", "parcels"])
