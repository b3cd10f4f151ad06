"""The documentation page about change capture.

Its commands run unchanged and in order, while a server captures. Its program is tested elsewhere.
"""

from __future__ import annotations

import re
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.cli.conftest import Headrace, Operator
from tests.cli.processes import PATIENCE, Commands
from tests.support import servers
from tests.support.captures import drop_slots

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/capture.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sql|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)

OTHER_TABLES = """
    create table customers (id bigint primary key, name text);
    create table invoices (id bigint primary key, customer_id bigint not null);
"""
"""The tables that the page's second source captures."""

OF_THE_SERVER = "alter system"
"""Statements that the test skips, because they change settings of a shared server."""

WITHOUT_END = ("serve", "observe")

ASKING = ("rm", "drop", "cancel")
"""Words of commands that ask for a confirmation."""

NOTHING_TO_DO = {"cancel", "retry", "drop"}
"""Words of commands that end with exit code 1 when there is nothing to do."""


@pytest.fixture
def shop(operator: Operator) -> Iterator[Operator]:
    """A database. Its slots are dropped at the end."""
    _execute(operator.dsn, OTHER_TABLES)
    yield operator
    servers.run(drop_slots(operator.dsn))


def _execute(dsn: str, sql: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    servers.run(execute())


def test_every_line_of_the_page_works(shop: Operator, headrace: Headrace, commands: Commands) -> None:
    called = 0
    server = None
    for language, block in BLOCK.findall(PAGE):
        if language == "sql":
            if not block.startswith(OF_THE_SERVER):
                _execute(shop.dsn, block)
            continue
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "headrace", line
            if words[0] == "serve":
                server = commands(*words, "--port", "0")
                server.line("listening")
            elif words[0] not in WITHOUT_END:
                _call(shop, headrace, words)
            called += 1
    assert called > 20
    assert server is not None
    server.send(signal.SIGTERM)
    assert server.end() == 0, server.lines


def _call(shop: Operator, headrace: Headrace, words: list[str]) -> None:
    """Call a command as a user would: confirm questions, and wait while an earlier command is under way."""
    asked = set(ASKING) & set(words)
    if {"start", "receive"} & set(words):
        _until_all_is_read(shop)
    ended = headrace(*words, *(["--yes"] if asked else []))
    assert ended.code == 0 or (ended.code == 1 and NOTHING_TO_DO & set(words)), (words, ended)


def _until_all_is_read(shop: Operator) -> None:
    end = time.monotonic() + PATIENCE
    while True:  # each attempt takes some time
        found = shop.json("source", "backfill", "ls", "orders")
        if found and all(one["state"] not in ("queued", "running") for one in found):
            return
        assert time.monotonic() < end, found


def test_the_page_shows_an_example_as_it_is() -> None:
    shown = re.findall(r"```python\n# (examples/\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert shown
    for name, code in shown:
        assert code in (ROOT / name).read_text(encoding="utf-8"), name


def test_the_page_names_every_example() -> None:
    for example in sorted((ROOT / "examples").glob("capture*.py")):
        assert f"examples/{example.name}" in PAGE, example.name


def test_every_link_of_the_page_leads_somewhere() -> None:
    for name, place in re.findall(r"\]\(([\w.]*)(?:#([\w-]+))?\)", PAGE):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8") if name else PAGE
        if place:
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert place in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, place
