"""`headrace database`: the commands of docs/databases.md, and databases that may not be used."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import store
from headrace.cli.connection import connect
from headrace.client.remote import Remote
from headrace.client.request import Request, Response
from headrace.model.records import StreamInfo
from headrace.server.options import Options
from tests.cli.conftest import Headrace, Operator
from tests.support import servers
from tests.support.serving import serving

PAGE = (Path(__file__).parents[2] / "docs" / "databases.md").read_text(encoding="utf-8")


@pytest.fixture
def eu_dsn(server_dsn: str, template: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A second database, whose URL is in EU_DATABASE."""
    with servers.clone(server_dsn, template) as dsn:
        monkeypatch.setenv("EU_DATABASE", dsn)
        yield dsn


def test_the_commands_of_the_page_run(
    headrace: Headrace, dsn: str, eu_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, _ = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    with serving(dsn, Options(database_references=("env:EU_DATABASE",))) as url:
        monkeypatch.setenv("HEADRACE_SERVER", url)
        operator = Operator(headrace, dsn, over_http=True)
        printed = {line: operator.out(*shlex.split(line)[1:]) for line in block.splitlines()}
        assert "can be used" in printed["headrace database check eu"]
        assert "visits" in printed["headrace stream ls"]
        assert "env:EU_DATABASE" in printed["headrace database ls"]
        assert eu_dsn not in str(printed)
        assert operator.json("stream", "info", "visits")["stream"]["database"] == "eu"
        assert operator.json("database", "info", "eu")["url_from"] == "env:EU_DATABASE"
        operator.call("database", "rm", "eu", "--yes")
        assert operator.json("database", "ls") == []
        operator.refused(66, "database", "check", "eu")
        operator.refused(66, "stream", "add", "x", "--in", "eu")
    assert [one.name for one in asyncio.run(_streams(eu_dsn))] == ["visits"]


async def _streams(dsn: str) -> list[StreamInfo]:
    async with servers.opened(dsn) as database:
        return list(await store.streams(database))


class _WithoutEu:
    """Answers lists as a server whose database `eu` is away."""

    async def send(self, request: Request) -> Response:
        return Response("http://x", 200, "OK", b'{"data": [], "unavailable": ["eu"]}')

    def close(self) -> None:
        pass


@pytest.mark.unit
def test_a_list_that_is_not_complete_says_so(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_open_remote", lambda server, _: Remote(server, transport=_WithoutEu()))
    for kind in ("stream", "schedule", "source"):
        assert (
            "not complete, because databases of the server did not answer: eu."
            in headrace(kind, "ls", "--server", "http://x").err
        )


def test_one_command_upgrades_all_databases(
    headrace: Headrace, dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    monkeypatch.setenv("EU_DATABASE", empty_dsn)
    operator = Operator(headrace, dsn)
    operator.call("database", "add", "eu", "--url-from", "env:EU_DATABASE")
    operator.call("database", "add", "away", "--url-from", "env:NOT_HERE", "--no-check")
    ended = operator.call("migrate", "--all-databases", code=1)
    assert f"eu: The schema has revision {store.newest_revision()}." in ended.out
    assert "away: " in ended.err
    assert "NOT_HERE is not set" in ended.err
    operator.refused(78, "stream", "add", "x", "--in", "eu")  # through a server only
