"""`headrace pg`: the embedded Postgres of a data directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.embedded import EmbeddedPostgres
from tests.cli.conftest import Headrace


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    data = tmp_path / "postgres"
    monkeypatch.setenv("HEADRACE_DATA", str(data))
    yield data
    EmbeddedPostgres(data).stop("immediate")


@pytest.mark.process
def test_its_life(headrace: Headrace, data: Path) -> None:
    assert headrace("pg", "status").code == 3
    assert headrace("pg", "start").code == 0
    status = headrace("pg", "status", "--json")
    assert status.code == 0
    assert (json.loads(status.out)["running"], json.loads(status.out)["kept"]) == (True, True)

    url = headrace("pg", "url")
    assert (url.code, url.err) == (0, "")
    assert headrace("migrate", "--database", url.out.strip()).code == 0

    asked = headrace("pg", "psql", "--", "-At", "-c", "select count(*) from headrace_internal.streams")
    assert (asked.code, asked.out) == (0, "0\n"), asked

    assert "stopped" in headrace("pg", "stop").out
    assert "was not running" in headrace("pg", "stop").out
    assert headrace("pg", "status").code == 3
    assert "not running" in headrace("pg", "url").err

    # Commands start the server when they need it, and they maintain its schema.
    assert "There are no streams" in headrace("stream", "ls").err
    assert headrace("pg", "status").code == 3
