"""Logs as lines for people or as JSON, with the message in work. An application's own logging setup is not changed."""

from __future__ import annotations

import io
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.output.logs import JsonFormatter, TextFormatter, set_up_logging
from tests.cli.processes import Commands
from tests.cli.test_run import Orders, orders

__all__ = ["orders"]


def _record(message: str = "hello", level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    record = logging.LogRecord("shop", level, __file__, 1, message, (), None)
    vars(record).update(extra)
    return record


AT_WORK = {"stream": "orders", "consumer": "ship", "key": "orders.us.1", "seq": 17, "attempt": 2}


def _json(record: logging.LogRecord, member: int | None = None) -> dict[str, Any]:
    line = JsonFormatter(member).format(record)
    assert "\n" not in line
    return json.loads(line)


def test_a_json_line_has_time_level_logger_message_and_process() -> None:
    record = _record(level=logging.WARNING)
    record.created = 1_700_000_000.25
    fields = _json(record, member=2)
    del fields["process"]
    assert fields == {
        "time": "2023-11-14T22:13:20.250000Z", "level": "warning", "logger": "shop", "message": "hello", "member": 2,
    }  # fmt: skip


def test_json_carries_the_message_at_work_and_what_was_given_as_extra() -> None:
    fields = _json(_record(**AT_WORK, trace_id="abc", order={"id": 5}, where=Path("/x")))
    assert {name: fields[name] for name in AT_WORK} == AT_WORK
    assert (fields["trace_id"], fields["order"], fields["where"]) == ("abc", {"id": 5}, "/x")


def test_extra_does_not_take_the_place_of_what_every_line_has() -> None:
    assert _json(_record(level_=1, logger="mine"))["logger"] == "shop"


def test_an_exception_is_text_in_json() -> None:
    record = _record()
    try:
        raise ValueError("bad order")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert _json(record)["exception"].endswith("ValueError: bad order")


@pytest.mark.parametrize("odd", [{(1, 2): 3}, "\udcff", float("nan"), {"a": {1j}}, object])
def test_there_is_a_line_for_every_record(odd: Any) -> None:
    fields = _json(_record("odd \udcff" if odd == "\udcff" else "odd", odd=odd))
    assert "odd" in fields
    assert fields["message"].startswith("odd")


def test_a_line_for_people_ends_with_the_message_in_work() -> None:
    line = TextFormatter().format(_record("hello", **AT_WORK, region="eu"))
    assert line.endswith("INFO    shop: hello  orders/ship orders.us.1 #17 attempt 2 region=eu")
    assert TextFormatter(3).format(_record()).endswith("INFO    [3] shop: hello")


def test_a_log_line_of_a_batch_has_the_number_of_its_messages() -> None:
    line = TextFormatter().format(_record(stream="orders", consumer="ship", messages=100))
    assert line.endswith("hello  orders/ship 100 messages")


def test_the_message_in_work_comes_before_a_traceback_in_the_record() -> None:
    first, second = TextFormatter().format(_record("failed\nTraceback", **AT_WORK)).split("\n")
    assert first.endswith("attempt 2")
    assert second == "  Traceback"


def test_colours_are_for_levels_that_matter() -> None:
    assert "\x1b[31mERROR" in TextFormatter(colors=True).format(_record(level=logging.ERROR))
    assert "\x1b" not in TextFormatter(colors=True).format(_record())
    assert "\x1b" not in TextFormatter().format(_record(level=logging.ERROR, **AT_WORK))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _fresh(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """Restore the root logger of a fresh process. pytest's own handlers are added between a fixture and its test."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    return root


@pytest.mark.parametrize(
    ("terminal", "log_format", "formatter", "environment", "colors"),
    [
        (True, "auto", TextFormatter, {}, True),
        (True, "auto", TextFormatter, {"NO_COLOR": "1"}, False),
        (True, "auto", TextFormatter, {"TERM": "dumb"}, False),
        (False, "auto", JsonFormatter, {}, None),
        (True, "json", JsonFormatter, {}, None),
        (False, "text", TextFormatter, {}, False),
    ],
)
def test_the_form_follows_where_standard_error_leads_to(
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool, log_format: Any, formatter: type, environment: dict[str, str], colors: bool | None,
) -> None:  # fmt: skip
    root = _fresh(monkeypatch)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    set_up_logging("info", log_format)
    (handler,) = root.handlers
    assert type(handler.formatter) is formatter
    logging.getLogger("shop").error("hello")
    if colors is not None:
        assert ("\x1b" in sys.stderr.getvalue()) is colors  # type: ignore[attr-defined]


def test_an_application_s_own_logging_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    root = _fresh(monkeypatch)
    own = logging.NullHandler()
    root.addHandler(own)
    level = root.level
    set_up_logging("debug", "json")
    assert (root.handlers, root.level) == ([own], level)


OWN = """
import logging
from headrace import App, Message

{set_up}
app = App()

@app.consumer("orders")
async def ship(order: dict, message: Message) -> None:
    logging.getLogger("shop").warning("shipping", extra={{"region": "eu"}})
"""


def test_log_lines_of_a_handler_name_its_message(commands: Commands, dsn: str, orders: Orders, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(OWN.format(set_up=""))
    running = commands("run", "shop:app", "--database", dsn, HEADRACE_LOG_FORMAT="json")
    orders(1, until="")
    fields = json.loads(running.line('"shipping"'))
    wanted = {"stream": "orders", "consumer": "ship", "key": "orders.1", "seq": 1, "attempt": 1, "region": "eu"}
    assert {name: fields[name] for name in wanted} == wanted
    running.send(signal.SIGTERM)
    assert running.end() == 0


def test_an_application_that_sets_logging_up_at_import_keeps_that(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    set_up = "logging.basicConfig(format='MINE %(message)s')"
    (tmp_path / "shop.py").write_text(OWN.format(set_up=set_up))
    running = commands("run", "shop:app", "--database", dsn, "--log-format", "json")
    orders(1, until="")
    assert running.line("shipping") == "MINE shipping"
    running.send(signal.SIGTERM)
    assert running.end() == 0
    assert not any(line.startswith("{") for line in running.lines)
