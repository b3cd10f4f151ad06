"""Each test has a Postgres database of its own, on an embedded server that starts and stops with the tests."""

from __future__ import annotations

import pytest

pytest_plugins = ["headrace.testing.plugin"]


@pytest.fixture
def anyio_backend() -> str:
    """Run tests marked with `anyio` on asyncio, as the service runs."""
    return "asyncio"
