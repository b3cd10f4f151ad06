"""`headrace publish` stores whole chunks up to the first invalid line, and reports that line's number."""

from __future__ import annotations

import gzip
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.cli.commands.publish import Publication
from headrace.cli.errors import StoppedEarly
from headrace.cli.input import ndjson
from headrace.cli.input.line_reader import open_lines
from headrace.cli.output.progress import Progress
from headrace.model.errors import InvalidData, InvalidInput, InvalidKey, StoreUnavailable
from tests.cli.conftest import Headrace
from tests.cli.processes import Commands
from tests.support import servers

Messages = Callable[[], list[tuple[str, str, str | None]]]


@pytest.fixture
def messages(dsn: str) -> Messages:
    """Return the messages of the stream `orders`: keys, data and headers in order."""

    async def read() -> list[tuple[str, str, str | None]]:
        database = store.Database(dsn)
        await database.open()
        try:
            rows = await database.fetch(
                "select key, data::text, headers::text from headrace_streams.orders order by seq"
            )
        finally:
            await database.close()
        return [tuple(row) for row in rows]

    return lambda: servers.run(read())


def _file(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def _numbered(count: int) -> list[dict[str, Any]]:
    return [{"key": f"orders.{number % 7}", "data": number} for number in range(1, count + 1)]


def test_lines_become_messages_as_they_were_written(
    headrace: Headrace, dsn: str, tmp_path: Path, messages: Messages
) -> None:
    file = _file(
        tmp_path / "x", '{"key": "a.b", "data": {"x":  1.50}}', "", ' {"key":"ä","data":null,"headers":{"t": [1]}} '
    )
    ended = headrace("publish", "orders", file, "--create", "--database", dsn)
    assert (ended.code, ended.out) == (0, "Published 2 messages to 'orders'.\n"), ended
    assert messages() == [("a.b", '{"x":  1.50}', None), ("ä", "null", '{"t": [1]}')]


def test_lines_with_a_time_to_live(headrace: Headrace, dsn: str, tmp_path: Path, messages: Messages) -> None:
    path = _file(tmp_path / "some.ndjson", {"key": "a", "data": 1}, {"key": "b", "data": 2, "headers": {"t": 1}})
    ended = headrace("publish", "orders", path, "--create", "--expires-in", "5m", "--database", dsn)
    assert ended.code == 0, ended
    assert [headers for _, _, headers in messages()] == [
        '{"headrace-expires-in":300}',
        '{"t": 1,"headrace-expires-in":300}',
    ]


def test_nothing_is_created_by_accident(headrace: Headrace, dsn: str, tmp_path: Path) -> None:
    ended = headrace("publish", "order", _file(tmp_path / "x", *_numbered(3)), "--database", dsn)
    assert ended.code == 66
    assert "--create" in ended.err
    assert headrace("stream", "ls", "--json", "--database", dsn).out.split() == ["[]"]


def test_the_lines_before_a_wrong_one_are_published_and_skip_goes_on(
    headrace: Headrace, dsn: str, tmp_path: Path, messages: Messages
) -> None:
    lines = _numbered(25)
    lines[17]["key"] = "orders..5"
    file = tmp_path / "x"
    options = ("--create", "--batch", "10", "--database", dsn)
    ended = headrace("publish", "orders", _file(file, *lines), *options)
    assert ended.code == 65
    assert "Line 18: " in ended.err
    assert "--skip 17" in ended.err
    assert [int(data) for _, data, _ in messages()] == list(range(1, 18))

    lines[17]["key"] = "orders.5"
    assert headrace("publish", "orders", _file(file, *lines), *options, "--skip", "17").code == 0
    assert [int(data) for _, data, _ in messages()] == list(range(1, 26))


@pytest.mark.parametrize("bad", [1, 2, 7, 10, 11, 20])
def test_a_line_that_only_the_database_refuses_is_found_too(
    headrace: Headrace, dsn: str, tmp_path: Path, messages: Messages, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    monkeypatch.setattr(
        ndjson.payloads, "encode", lambda raw: bytes(raw).decode()
    )  # otherwise this would refuse it earlier
    lines: list[Any] = _numbered(20)
    lines[bad - 1] = r'{"key": "a", "data": "\u0000"}'
    ended = headrace("publish", "orders", _file(tmp_path / "x", *lines), "--create", "--batch", "10", "--database", dsn)
    assert ended.code == 65
    assert f"Line {bad}: " in ended.err
    assert len(messages()) == bad - 1


@pytest.mark.parametrize(
    ("line", "problem", "expected"),
    [
        (b'{"key": "a"', InvalidData, "UTF-8"),
        (b'{"key": "a"}', InvalidInput, "`data`"),
        (b'{"key": "a", "data": 1, "header": {}}', InvalidInput, "`header`"),
        (b'{"key": 1, "data": 1}', InvalidInput, "key"),
        (b'{"key": "a..b", "data": 1}', InvalidKey, "empty token"),
        (b'{"key": "a", "data": 1, "headers": []}', InvalidData, "JSON object"),
        (rb'{"key": "a", "data": "\u0000"}', InvalidData, "NUL"),
        (rb'{"key": "a", "data": 1, "headers": {"x": "\u0000"}}', InvalidData, "NUL"),
        (b'{"key": "a", "data": "\xff"}', InvalidData, "utf-8"),
        (b'{"key": "a", "data": NaN}', InvalidData, "JSON"),
        (b'{"key": "a", "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", InvalidData, "nested"),
        (b"[]", InvalidInput, "object"),
        (b"not json", InvalidData, "JSON"),
    ],
)
def test_a_wrong_line_is_reported_with_what_would_be_right(
    line: bytes, problem: type[Exception], expected: str
) -> None:
    with pytest.raises(problem, match=expected):
        ndjson.parse_line(line)


def test_a_compressed_file(headrace: Headrace, dsn: str, tmp_path: Path, messages: Messages) -> None:
    file = tmp_path / "x.gz"
    whole = gzip.compress("".join(json.dumps(line) + "\n" for line in _numbered(3000)).encode())
    file.write_bytes(whole)
    assert headrace("publish", "orders", file, "--create", "--database", dsn).code == 0
    assert len(messages()) == 3000


def test_a_compressed_file_that_was_cut_off(headrace: Headrace, dsn: str, tmp_path: Path, messages: Messages) -> None:
    file = tmp_path / "x.gz"
    whole = gzip.compress("".join(json.dumps(line) + "\n" for line in _numbered(50_000)).encode(), 1)
    file.write_bytes(whole[: len(whole) // 2])
    ended = headrace("publish", "orders", file, "--create", "--database", dsn)
    assert ended.code == 65
    assert 0 < len(messages()) < 50_000
    assert f"--skip {len(messages())}" in ended.err


def test_more_lines_are_skipped_than_there_are(headrace: Headrace, dsn: str, tmp_path: Path) -> None:
    file = _file(tmp_path / "x", *_numbered(3))
    ended = headrace("publish", "orders", file, "--create", "--skip", "4", "--database", dsn)
    assert ended.code == 65
    assert "only 3 lines" in ended.err


def test_a_pipe_is_published_as_it_comes_and_an_interrupt_says_how_far(
    commands: Commands, headrace: Headrace, dsn: str
) -> None:
    headrace("publish", "orders", "/dev/null", "--create", "--database", dsn)
    running = commands("publish", "orders", "--database", dsn)
    running.write('{"key": "a", "data": 1}\n{"key": "a", "data": 2}\n{"key": "half')
    while json.loads(headrace("stream", "info", "orders", "--json", "--database", dsn).out)["stream"]["messages"] < 2:
        pass
    running.send(signal.SIGINT)
    assert running.end() == 130
    assert any("2 messages up to line 2 were published. Continue with --skip 2" in line for line in running.lines), (
        running.lines
    )


class _Breaks(store.Database):
    """Breaks the connection at the commit of the second chunk, so that it is unknown whether it was committed."""

    commits = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with super().transaction() as connection:
            yield connection
        self.commits += 1
        if self.commits == 2:
            raise StoreUnavailable("The connection broke.")


@pytest.mark.asyncio
async def test_a_connection_that_breaks_at_a_commit_leaves_it_open_what_was_published(dsn: str, tmp_path: Path) -> None:
    database = _Breaks(dsn)
    await database.open()
    try:
        await store.create_stream(database, "orders")
        with open_lines(str(_file(tmp_path / "x", *_numbered(30)))) as lines:
            publication = Publication(Admin(database), "orders", lines, 10)
            with pytest.raises(
                StoppedEarly, match=r"Lines 11 to 20 may or may not be published.* up to line 10"
            ) as caught:
                await publication.run(Progress())
    finally:
        await database.close()
    assert caught.value.exit_code == StoreUnavailable.exit_code
    assert publication.published == 10


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of Unix")
def test_a_terminal_sees_a_progress_bar(commands: Commands, dsn: str, tmp_path: Path) -> None:
    import os
    import pty
    import subprocess

    file = _file(tmp_path / "x", *_numbered(5000))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headrace.cli.main", "publish", "orders", str(file), "--create", "--database", dsn]
    ended = subprocess.run(command, stderr=theirs, capture_output=False, stdout=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    shown = os.read(ours, 1_000_000).decode()
    os.close(ours)
    assert ended.stdout == "Published 5,000 messages to 'orders'.\n"
    assert "5,000 messages" in shown
    assert "100%" in shown
