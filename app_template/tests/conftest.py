"""Tests run on a Postgres of their own, which comes with Headrace and leaves with the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headrace.embedded import EmbeddedPostgres


@pytest.fixture(scope="session", autouse=True)
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The database that `app` connects to during the tests."""
    with (
        EmbeddedPostgres(tmp_path_factory.mktemp("postgres")).acquire() as tenancy,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HEADRACE_DATABASE", tenancy.url)
        yield tenancy.url


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked with `anyio` run on asyncio, as the service does."""
    return "asyncio"
