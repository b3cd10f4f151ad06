"""Commands on a fresh database, and files for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.conftest import _nothing_of_the_users, headrace, operator  # noqa: F401 - fixtures

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and return its path."""

    def to(text: str, name: str = "headrace.yaml") -> Path:
        path = tmp_path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return to
