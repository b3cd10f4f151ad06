"""What a process records, and that the page says so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from headrace import store
from headrace.model.watching import history_log
from tests.docs.code_blocks import blocks
from tests.histories.__main__ import report
from tests.histories.reading import FORMAT, History

ROOT = Path(__file__).parents[2]

PAGE = ROOT / "docs/history.md"

pytestmark = [pytest.mark.process]


def start(dsn: str, history: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.histories.recorded_process", dsn, *options], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "HEADRACE_HISTORY": str(history)},
    )  # fmt: skip


def lines_of(history: Path) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for line in History(history).lines():
        found[line.fields["event"]].append(line.fields)
    return found


def documented() -> dict[str, set[str]]:
    """The fields of each event, from the table of the page."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (?!by a test)", PAGE.read_text(), re.MULTILINE)
    return {event: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", fields))) for event, fields in rows}


def test_a_process_records_what_the_page_says(dsn: str, tmp_path: Path) -> None:
    with start(dsn, tmp_path) as process:
        assert process.wait() == 0, process.stderr and process.stderr.read()
    lines = lines_of(tmp_path)
    assert {event: set().union(*map(set, some)) - {"t", "event"} for event, some in lines.items()} == {
        event: fields for event, fields in documented().items() if event in lines
    }
    assert lines.keys() == documented().keys() - {"lost", "order", "overlap", "stale", "doubled"}
    assert history_log.FORMAT == FORMAT == lines["process"][0]["version"]
    checked = report(tmp_path)
    assert checked.violations == [], checked.text
    kinds = [kind for line in lines["settle"] for kind in line["kinds"]]
    assert {"ack", "retry"} <= set(kinds)
    assert {type(line["tx"]) for line in lines["settle"]} == {int, type(None)}
    assert 0 in [line["tx"] for line in lines["settle"]], "an ack in a transaction of the user"
    assert len(lines["lease"]) >= 3


def test_the_history_of_a_killed_process_is_there(dsn: str, tmp_path: Path) -> None:
    with start(dsn, tmp_path, "freeze") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "frozen\n"
        process.kill()
    lines = lines_of(tmp_path)
    assert [line["stream"] for line in lines["consumer"]].count("orders") >= 1
    assert any(1 in line["seqs"] for line in lines["lease"]), "what was leased before the first handler began"
    with start(dsn, tmp_path) as process:
        assert process.wait() == 0, process.stderr and process.stderr.read()
    assert len(History(tmp_path).files) == 2


def test_a_history_that_can_not_be_written_stops_nothing(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with start(dsn, tmp_path / "file" / "history") as process:
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read().count("the history can't be written") == 1


def test_nothing_is_wrapped_without_the_variable() -> None:
    assert history_log.LOG is None
    assert not any(
        hasattr(verb, "__wrapped__") for verb in (store.publish, store.publish_many, store.lease, store.settle)
    )


def test_the_example_of_the_page_is_a_history(tmp_path: Path) -> None:
    (example,) = [block.text for block in blocks(PAGE) if block.language == "json"]
    for line in example.splitlines():
        fields = json.loads(line)
        assert set(fields) - {"t", "event"} <= documented()[fields["event"]]
