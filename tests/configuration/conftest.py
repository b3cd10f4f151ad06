"""Commands on a fresh database, and files for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.conftest import _nothing_of_the_users, headrace, operator  # noqa: F401 - fixtures
from tests.support import servers

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and return its path."""

    def to(text: str, name: str = "headrace.yaml") -> Path:
        path = tmp_path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return to


@pytest.fixture
def eu_dsn(server_dsn: str, template: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a second database, which `env:HR_TEST_EU` names."""
    with servers.clone(server_dsn, template) as dsn:
        monkeypatch.setenv("HR_TEST_EU", dsn)
        yield dsn
