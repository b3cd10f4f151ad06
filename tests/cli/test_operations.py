"""Commands that are made of the rows of operations."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headrace.admin.requests.operation import DATABASE, Command, Count, Operation
from headrace.admin.requests.operations import OPERATIONS
from headrace.cli.commands.operations import commands_of, print_answer
from headrace.cli.groups import App, consumer, database, schedule, source, stream, token
from headrace.model.records import DatabaseInfo

pytestmark = pytest.mark.unit

EU = DatabaseInfo(name="eu", url_from="env:EU", created_at=datetime(2030, 1, 31, 12, tzinfo=UTC))

ROWS = [operation.command for operation in OPERATIONS.values() if operation.command is not None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_command_of_a_row_is_in_its_group(row: Command) -> None:
    groups: dict[str, App] = {
        "consumer": consumer,
        "database": database,
        "schedule": schedule,
        "source": source,
        "stream": stream,
        "token": token,
    }
    first, *rest, name = row.name.split()
    group = groups[first]
    for part in rest:
        group = group[part]
    assert name in group
    assert name in dict(commands_of(row.name.rpartition(" ")[0]))


@pytest.mark.parametrize(
    ("answer", "command", "result", "text"),
    [
        (DatabaseInfo, Command("x"), EU, "name        eu\nurl_from    env:EU\ncreated_at  2030-01-31T12:00:00Z\n"),
        (DatabaseInfo, Command("x", fields=("name",)), EU, "name  eu\n"),
        (DatabaseInfo, Command("x", done="{name!r} has {result.url_from}."), EU, "'eu' has env:EU.\n"),
        (list[DatabaseInfo], Command("x", fields=("name", "url_from")), [EU], "name  url_from\neu    env:EU\n"),
        (list[DatabaseInfo], Command("x"), [], ""),
        (Count("dropped", "change"), Command("x"), 1234, "Dropped: 1,234 changes.\n"),
        (Count("dropped", "change"), Command("x", done="{result} of {name}."), 1, "1 change of eu.\n"),
    ],
)  # fmt: skip
def test_a_result_is_printed_as_its_row_says(
    answer: object, command: Command, result: object, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_answer(Operation("GET", DATABASE, "Read", answer), command, {"name": "eu"}, result, json=False)
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("method", "answer", "result", "text"),
    [
        ("DELETE", None, None, '{\n  "deleted": "eu"\n}\n'),
        ("POST", None, None, '{\n  "name": "eu"\n}\n'),
        ("POST", Count("dropped"), 3, '{\n  "dropped": 3\n}\n'),
    ],
)
def test_json_says_what_was_done(
    method: str, answer: object, result: object, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_answer(
        Operation(method, DATABASE, "Do", answer), Command("x", done="Done."), {"name": "eu"}, result, json=True
    )
    assert capsys.readouterr().out == text
