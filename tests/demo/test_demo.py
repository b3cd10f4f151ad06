"""`headrace demo`. The delivered stream is compared with git's own tree."""

from __future__ import annotations

import gzip
import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from headrace.cli.main import call
from tests.cli.processes import Commands
from tests.demo.repositories import Made, with_everything
from tests.runtime.running import eventually
from tests.support import servers

RIVER = Path(__file__).parents[1] / "data" / "git-history"

Demo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def demo(dsn: str, capfd: pytest.CaptureFixture[str]) -> Demo:
    """Run the demo. Returns its exit code and output. It must leave no stream behind, even if it fails."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = call(["demo", "--fast", "--database", dsn, *map(str, arguments)])
        captured = capfd.readouterr()
        assert call(["stream", "ls", "--json", "--database", dsn]) == 0
        assert capfd.readouterr().out.split() == ["[]"]
        return code, captured.out, captured.err

    return run


def report(out: str) -> dict[str, str]:
    """The books at the end, by title."""
    return dict(found.groups() for line in out.splitlines() if (found := re.fullmatch(r"([a-z ]+?)\s{2,}(\S.*)", line)))


@pytest.mark.long
def test_a_repository_with_everything(demo: Demo, tmp_path: Path) -> None:
    made = with_everything(tmp_path / "every.thing")
    code, out, _ = demo("--repo", made.path)
    assert code == 0, out
    found = report(out)
    assert found["tree"] == "equals git's"
    assert (found["lost"], found["out of order"]) == ("0", "0")
    assert found["doubled effects"].startswith("0; ")
    assert re.fullmatch(r"(\d+) of (\d+) handled, in .* s; 1 dead letter", found["messages"])
    assert found.keys() >= {"keys", "speed here"}
    for event in ("SIGKILL", "leaves its transaction open", "it commits", "poison message", "dead letter"):
        assert event in out
    assert "new shop" in out


@pytest.mark.long
def test_a_shallow_clone_and_a_repository_with_one_commit(demo: Demo, tmp_path: Path) -> None:
    made = Made(tmp_path / "made")
    for number in range(3):
        made.write("a", str(number))
        made.commit()
    made.git("clone", "-q", "--depth", "1", f"file://{made.path}", str(tmp_path / "shallow"))
    code, out, _ = demo("--repo", tmp_path / "shallow")
    assert code == 0, out
    assert "2 of 3 handled" in out  # the change, the late message and the poison


def test_a_published_history(demo: Demo) -> None:
    code, out, _ = demo("--history", RIVER / "river.ndjson.gz", "--tree", RIVER / "river-tree.json.gz", "--actors", 8)
    assert code == 0, out
    assert "5,811 of 5,812 handled" in out


@pytest.mark.long
def test_a_history_that_is_out_of_order_or_leads_elsewhere_is_caught(demo: Demo, tmp_path: Path) -> None:
    lines = gzip.decompress((RIVER / "river.ndjson.gz").read_bytes()).splitlines(keepends=True)
    keys = [json.loads(line)["key"] for line in lines]
    del lines[keys.index(Counter(keys).most_common(1)[0][0])]
    history = tmp_path / "history.ndjson"
    history.write_bytes(b"".join(lines))
    code, out, _ = demo("--history", history, "--tree", _file(tmp_path / "tree", '{"Makefile": "0"}'))
    assert code == 1
    assert report(out)["out of order"] == "1"
    assert "WRONG, 412 files differ" in out
    assert "but the file was at" in out
    assert "new shop" not in out


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("history", "tree", "code", "message"),
    [
        ("", "{}", 66, "empty"),
        ('{"key": "a"}', "{}", 65, "Line 1"),
        (None, "{}", 66, "can't be read"),
    ],
)
def test_files_that_are_something_else_are_reported(
    demo: Demo, tmp_path: Path, history: str | None, tree: str, code: int, message: str
) -> None:
    if history is not None:
        (tmp_path / "history").write_text(history)
    (tmp_path / "tree").write_text(tree)
    ended, _, err = demo("--history", tmp_path / "history", "--tree", tmp_path / "tree")
    assert ended == code
    assert message in err
    assert "Traceback" not in err


@pytest.mark.process
def test_the_workers_of_a_demo_that_is_killed_end(dsn: str, tmp_path: Path) -> None:
    sessions = """select count(*) from pg_stat_activity
                  where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
    with Commands(tmp_path) as commands:
        running = commands(
            "demo", "--history", str(RIVER / "river.ndjson.gz"), "--tree", str(RIVER / "river-tree.json.gz"),
            "--database", dsn,
        )  # fmt: skip
        running.line("worker processes start")
        servers.run(_until(dsn, "select count(distinct owner) >= 2 from headrace.in_flight"))
        running.send(signal.SIGKILL)
        servers.run(_until(dsn, f"select ({sessions}) = 0"))


async def _until(dsn: str, condition: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await eventually(lambda: connection.fetchval(condition))
    finally:
        await connection.close()
