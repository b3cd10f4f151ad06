"""Each test has a Postgres database of its own, on a server that comes with Headrace and leaves with the tests."""

from __future__ import annotations

import pytest

pytest_plugins = ["headrace.testing.plugin"]


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked with `anyio` run on asyncio, as the service does."""
    return "asyncio"
