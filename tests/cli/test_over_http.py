"""Behaviour of commands that exists only over HTTP. `BOTH_WAYS` covers what holds for a database, too."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.server.options import Options
from tests.cli.conftest import BOTH_WAYS, Headrace, Operator
from tests.cli.processes import PATIENCE, Commands
from tests.client.scripted import Peer, Scripted, scripted
from tests.support.serving import serving

over_http = pytest.mark.parametrize("operator", ["server"], indirect=True)


def _file(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def _numbered(count: int, padding: str = "") -> list[Any]:
    return [{"key": f"orders.{n % 7}", "data": {"n": n, "x": padding}} for n in range(1, count + 1)]


def _numbers(operator: Operator) -> list[int]:
    return [one["data"]["n"] for one in operator.json("stream", "view", "orders", "--first", "10000")]


# --- publish


@BOTH_WAYS
def test_lines_are_published_in_their_order(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in _numbered(2500)).encode()))
    output = operator.out("publish", "orders", file, "--create", "--batch", "999")
    assert output == "Published 2,500 messages to 'orders'.\n"
    assert _numbers(operator) == list(range(1, 2501))


@BOTH_WAYS
def test_the_lines_before_a_wrong_one_are_published_and_skip_goes_on(operator: Operator, tmp_path: Path) -> None:
    lines = _numbered(25)
    lines[17]["key"] = "orders..5"
    operator.call("stream", "add", "orders")
    output = operator.refused(65, "publish", "orders", _file(tmp_path / "x", lines), "--batch", "10")
    assert "Line 18: " in output
    assert "--skip 17" in output
    assert _numbers(operator) == list(range(1, 18))
    lines[17]["key"] = "orders.5"
    operator.call("publish", "orders", _file(tmp_path / "x", lines), "--skip", "17")
    assert _numbers(operator) == list(range(1, 26))


@BOTH_WAYS
def test_nothing_is_created_by_accident(operator: Operator, tmp_path: Path) -> None:
    assert "--create" in operator.refused(66, "publish", "order", _file(tmp_path / "x", _numbered(3)))
    assert operator.json("stream", "ls") == []


def test_a_publish_over_the_body_limit_of_the_server_is_sent_in_parts(
    headrace: Headrace, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = _numbered(200, 100 * "x")
    with serving(dsn, Options(max_body=5000)) as url:
        monkeypatch.setenv("HEADRACE_SERVER", url)
        operator = Operator(headrace, dsn)
        operator.call("publish", "orders", _file(tmp_path / "x", lines), "--create")
        assert _numbers(operator) == list(range(1, 201))
        lines[100]["data"]["x"] = 6000 * "x"
        output = operator.refused(65, "publish", "orders", _file(tmp_path / "x", lines))
        assert "Line 101: " in output
        assert "--skip 100" in output


def test_an_answer_that_is_lost_leaves_it_open_what_was_published(headrace: Headrace, tmp_path: Path) -> None:
    def breaks_at_the_second_batch(peer: Peer, state: Scripted) -> None:
        peer.request()
        peer.answer(_STREAM)
        peer.request()
        peer.answer(b'{"data": {"published": 10}}')
        peer.request()

    with scripted(breaks_at_the_second_batch) as server:
        file = _file(tmp_path / "x", _numbered(30))
        ended = headrace("publish", "orders", file, "--batch", "10", "--server", server.url)
    assert ended.code == 69
    assert "Lines 11 to 20 may or may not be published" in ended.err
    assert "up to line 10 were published. Continue with --skip 10" in ended.err


_STREAM = json.dumps(
    {
        "info": {
            "id": "x", "name": "orders", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
            "retention": "limits", "retain_up_to": None, "retain_at_least": None, "max_storage": None,
            "one_message_per_key": False, "dedupe": False, "tombstones": False, "dedupe_window": 120, "index_keys": False, "first_seq": None,
            "last_seq": None, "messages": 0, "size": 0, "segments": 1, "consumers": 0, "scheduled": 0,
            "next_scheduled": None, "full": False,
        }
    }
).encode()  # fmt: skip


# --- a user at a terminal


@pytest.mark.process
def test_an_interrupt_ends_a_wait_for_messages_at_once(commands: Commands) -> None:
    def silent(peer: Peer, state: Scripted) -> None:
        peer.request()
        state.requested.set()
        if not peer.request():
            state.disconnected.set()

    with scripted(silent) as server:
        running = commands("consumer", "receive", "orders", "ship", "--wait", "50m", "--server", server.url)
        assert server.requested.wait(PATIENCE)
        running.send(signal.SIGINT)
        assert running.end() == 130
        assert server.disconnected.wait(PATIENCE)
    assert running.lines == []


@over_http
@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_messages_that_could_not_be_printed_are_not_acked(
    operator: Operator, commands: Commands, json_: list[str]
) -> None:
    operator.call("stream", "add", "orders")
    operator.call("consumer", "add", "orders", "ship")
    operator.send("orders", *((f"orders.{n}", "x" * 1000) for n in range(100)))
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "consumer", "receive", "ship", "--batch-size", "100", "--ack", *json_],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={name: value for name, value in commands.environment().items() if name != "PYTHONUNBUFFERED"},
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert operator.json("consumer", "info", "ship")["num_ack_pending"] == 100


# --- tokens


@over_http
def test_a_server_with_tokens_explains_how_to_pass_one(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = operator.out("token", "add", "me", "--scope", "admin").strip()
    output = operator.refused(78, "stream", "ls")
    assert "--token" in output
    assert "headrace context add" in output
    assert token not in operator.refused(78, "stream", "ls", "--token", f"{token}x")
    assert operator.json("stream", "ls", "--token", token) == []
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("HEADRACE_TOKEN", token)
    assert [one["name"] for one in operator.json("token", "ls")] == ["me"]
    assert "Revoked" in operator.out("token", "revoke", "me")
    assert "--token" in operator.refused(78, "stream", "ls")


@over_http
def test_a_scope_that_is_too_small_is_reported(operator: Operator) -> None:
    operator.call("stream", "add", "orders")
    token = operator.out("token", "add", "reader", "--scope", "consume:orders").strip()
    assert operator.json("stream", "info", "orders", "--token", token)["stream"]["name"] == "orders"
    assert "not allowed" in operator.refused(78, "stream", "rm", "orders", "--yes", "--token", token)


@over_http
def test_a_token_for_publishing_is_enough_to_publish(operator: Operator, tmp_path: Path) -> None:
    operator.call("stream", "add", "orders")
    operator.call("stream", "add", "parcels")
    root = operator.out("token", "add", "root", "--scope", "admin").strip()
    token = operator.out("token", "add", "sender", "--scope", "publish:orders", "--token", root).strip()
    file = _file(tmp_path / "x", _numbered(3))
    assert "Published 3 messages" in operator.out("publish", "orders", file, "--token", token)
    assert "Sent" in operator.out("stream", "send", "orders", "a", "1", "--token", token)
    operator.refused(78, "publish", "orders", file, "--create", "--token", token)
    operator.refused(78, "publish", "parcels", file, "--token", token)


@over_http
def test_a_token_for_one_stream_needs_the_streams_name(operator: Operator) -> None:
    operator.call("stream", "add", "orders")
    operator.call("consumer", "add", "orders", "ship")
    token = operator.out("token", "add", "reader", "--scope", "consume:orders").strip()
    assert "`orders ship`" in operator.refused(78, "consumer", "info", "ship", "--token", token)
    assert operator.json("consumer", "info", "orders", "ship", "--token", token)["name"] == "ship"


# --- problems with the connection


def test_a_server_that_is_not_there(headrace: Headrace) -> None:
    ended = headrace("stream", "ls", "--server", "http://127.0.0.1:1")
    assert (ended.code, ended.err.count("\n")) == (69, 1)
    assert "http://127.0.0.1:1" in ended.err


def test_a_name_that_leads_nowhere(headrace: Headrace) -> None:
    ended = headrace("stream", "ls", "--server", "http://no-such-host.invalid:7376")
    assert (ended.code, ended.err.count("\n")) == (69, 1)
    assert "no-such-host.invalid" in ended.err


def test_something_else_that_listens_there(headrace: Headrace, dsn: str) -> None:
    with serving(dsn) as url:
        ended = headrace("stream", "ls", "--server", f"{url}/elsewhere")
    assert ended.code != 0
    assert ended.err.count("\n") == 1


# --- the documentation page about it


@over_http
def test_the_examples_of_the_page_work(operator: Operator) -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
    calls = [
        shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()
    ]
    assert len(calls) > 10
    for program, *words in calls:
        assert program == "headrace"
        operator.call(*words)


@over_http
def test_the_python_of_the_page_works(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    operator.call("stream", "add", "invoices")
    operator.call("consumer", "add", "invoices", "us_invoices")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    asyncio.run(namespace["pause"](os.environ["HEADRACE_SERVER"], "none-is-needed"))
    assert operator.json("consumer", "info", "us_invoices")["paused_until"] is not None
