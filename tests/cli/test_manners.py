"""Commands with a terminal, a pipe and Ctrl-C, as processes."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace import store
from tests.cli.conftest import Operator
from tests.cli.processes import PATIENCE, Commands
from tests.support import servers

_HEADRACE = [sys.executable, "-m", "headrace.cli.main"]


class _Terminal:
    """A command with a terminal as standard input and error."""

    def __init__(self, process: subprocess.Popen[str], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self.output = ""

    def read_until(self, text: str) -> None:
        while text not in self.output:
            assert select.select([self._terminal], [], [], PATIENCE)[0], f"no {text!r} in {self.output!r}"
            self.output += os.read(self._terminal, 4096).decode()

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out


@contextmanager
def _at_a_terminal(commands: Commands, *words: str) -> Iterator[_Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*_HEADRACE, *words], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True,
        env=commands.environment(), start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield _Terminal(process, ours)
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


@pytest.fixture
def orders(operator: Operator) -> Operator:
    """The stream `orders`, with enough messages to fill any pipe."""
    operator.call("stream", "add", "orders")
    operator.send("orders", *((f"orders.{n}", "x" * 1000) for n in range(500)))
    operator.call("consumer", "add", "orders", "ship")
    return operator


@pytest.mark.parametrize(("answer", "code"), [("yes\n", 0), ("Y\n", 0), ("\n", 1), ("no\n", 1), ("\x04", 1)])
def test_a_person_is_asked_before_anything_is_deleted(
    orders: Operator, commands: Commands, answer: str, code: int
) -> None:
    with _at_a_terminal(commands, "stream", "rm", "orders") as terminal:
        terminal.read_until("[y/N]")
        assert "500 messages and 1 consumer" in terminal.output
        terminal.type(answer)
        ended = terminal.end()
    assert ended == (code, "" if code else "Deleted the stream 'orders'.\n")
    assert len(orders.json("stream", "ls")) == code


def test_an_interrupt_at_the_question_deletes_nothing(orders: Operator, commands: Commands) -> None:
    with _at_a_terminal(commands, "consumer", "rm", "ship") as terminal:
        terminal.read_until("[y/N]")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == (130, "")
    assert len(orders.json("consumer", "ls")) == 1


def test_an_interrupt_ends_a_wait_for_messages(orders: Operator, commands: Commands) -> None:
    orders.call("consumer", "seek", "ship", "end")
    with _at_a_terminal(commands, "consumer", "receive", "ship", "--wait", "50m") as terminal:
        _await_its_lease(orders)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == (130, "")
        assert "Traceback" not in terminal.output


def _await_its_lease(operator: Operator) -> None:
    """Wait until the server sees that the command asks for messages."""
    servers.run(_lease_of_a_command(operator.dsn))


async def _lease_of_a_command(dsn: str) -> None:
    asks = """select count(*) from pg_stat_activity where datname = current_database()
              and application_name = 'headrace cli' and query ~ 'headrace_internal.lease'"""
    database = store.Database(dsn)
    await database.open()
    deadline = time.monotonic() + PATIENCE
    while not await database.fetchval(asks):
        assert time.monotonic() < deadline, "the command doesn't ask for messages"
    await database.drain()


def _buffered(commands: Commands) -> dict[str, str]:
    return {name: value for name, value in commands.environment().items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("json", [[], ["--json"]])
@pytest.mark.parametrize(
    "words", [("stream", "view", "orders", "--last", "500"), ("consumer", "receive", "ship", "--batch-size", "500")]
)
def test_a_reader_that_has_seen_enough_ends_it_quietly(
    orders: Operator, commands: Commands, words: tuple[str, ...], json: list[str]
) -> None:
    process = subprocess.Popen(
        [*_HEADRACE, *words, *json], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_buffered(commands)
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 141
    process.stderr.close()


def test_output_that_finds_no_room_is_reported_in_a_sentence(orders: Operator, commands: Commands) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [*_HEADRACE, "stream", "view", "orders", "--last", "500", "--json"], stdout=full, stderr=subprocess.PIPE,
            env=_buffered(commands), timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert process.stderr == b"headrace: The output can't be written: No space left on device.\n"
    assert process.returncode == 74


@pytest.mark.process
def test_a_closed_log_changes_no_exit_code(commands: Commands) -> None:
    program = (
        "import logging; from headrace.cli import main;"
        " main.call = lambda words: logging.warning('a line') or 0; main.main([])"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        process = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=closed, env=_buffered(commands),
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert process.returncode == 0


def test_messages_that_could_not_be_printed_are_not_acked(orders: Operator, commands: Commands) -> None:
    words = [*_HEADRACE, "consumer", "receive", "ship", "--batch-size", "500", "--ack"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_buffered(commands))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert orders.json("consumer", "info", "ship")["num_ack_pending"] == 500


CLOSED_SERVICE = """
from headrace import App

app = App(streams=["orders"])

@app.consumer("orders")
async def ship(number: int) -> None:
    print("shipping")
    with open("pipe", "w") as pipe:
        print("shipped", number, file=pipe)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_service_works_with_closed_standard_streams(
    operator: Operator, commands: Commands, tmp_path: Path, closed: str
) -> None:
    """The event loop ended the process when a socket had the number of a standard stream."""
    (tmp_path / "service.py").write_text(CLOSED_SERVICE)
    os.mkfifo(tmp_path / "pipe")
    operator.call("stream", "add", "orders")
    operator.call("stream", "send", "orders", "a", "7")
    words = [*_HEADRACE, "run", "service:app", "--database", operator.dsn]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    process = subprocess.Popen(
        shell + words, cwd=tmp_path, env=commands.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert (tmp_path / "pipe").read_text() == "shipped 7\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def test_output_that_cannot_hold_a_character_writes_it_out(orders: Operator, commands: Commands) -> None:
    orders.call("stream", "send", "orders", "key.ü", '"漢字"')
    ended = subprocess.run(
        [*_HEADRACE, "stream", "view", "orders", "--last", "1"],
        capture_output=True, env={**commands.environment(), "PYTHONIOENCODING": "ascii"}, check=True,
    )  # fmt: skip
    assert b"key.\\xfc" in ended.stdout
    assert ended.stderr == b""


@pytest.mark.process
@pytest.mark.parametrize("stream", ["stdin", "stderr"])
def test_observe_refuses_to_draw_where_no_terminal_is(commands: Commands, stream: str) -> None:
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stderr": theirs} | {stream: subprocess.PIPE}
    process = subprocess.Popen(
        [*_HEADRACE, "observe"], stdout=subprocess.PIPE, text=True, env=commands.environment(), start_new_session=True,
        **streams,
    )  # fmt: skip
    os.close(theirs)
    try:
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 64
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
