"""`headrace demo`. The delivered stream is compared with git's own tree."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.main import call
from tests.demo.repositories import Made, with_everything

RIVER = Path(__file__).parents[1] / "data" / "git-history"

Demo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def demo(dsn: str, capfd: pytest.CaptureFixture[str]) -> Demo:
    """Run the demo. Returns its exit code and output. It must leave no stream behind, even if it fails."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = call(["demo", "--database", dsn, *map(str, arguments)])
        captured = capfd.readouterr()
        assert call(["stream", "ls", "--json", "--database", dsn]) == 0
        assert capfd.readouterr().out.split() == ["[]"]
        return code, captured.out, captured.err

    return run


def test_a_repository_with_everything(demo: Demo, tmp_path: Path) -> None:
    made = with_everything(tmp_path / "every.thing")
    code, out, _ = demo("--repo", made.path)
    assert code == 0, out
    report = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines())
    assert report["tree"] == "equals git's"
    assert report["order per key"] == "kept"
    handled, _, published, _ = report["messages"].split()
    assert handled == published
    assert report.keys() >= {"keys", "actors", "messages/s"}


def test_a_shallow_clone_and_a_repository_with_one_commit(demo: Demo, tmp_path: Path) -> None:
    made = Made(tmp_path / "made")
    for number in range(3):
        made.write("a", str(number))
        made.commit()
    made.git("clone", "-q", "--depth", "1", f"file://{made.path}", str(tmp_path / "shallow"))
    code, out, _ = demo("--repo", tmp_path / "shallow")
    assert code == 0, out
    assert "1 of 1 handled" in out


def test_a_published_history(demo: Demo) -> None:
    code, out, _ = demo("--history", RIVER / "river.ndjson.gz", "--tree", RIVER / "river-tree.json.gz", "--actors", 64)
    assert code == 0, out
    assert "5,810 of 5,810 handled" in out


def test_a_history_that_is_out_of_order_or_leads_elsewhere_is_caught(demo: Demo, tmp_path: Path) -> None:
    lines = gzip.decompress((RIVER / "river.ndjson.gz").read_bytes()).splitlines(keepends=True)
    keys = [json.loads(line)["key"] for line in lines]
    del lines[keys.index(Counter(keys).most_common(1)[0][0])]
    history = tmp_path / "history.ndjson"
    history.write_bytes(b"".join(lines))
    code, out, _ = demo("--history", history, "--tree", RIVER / "river-tree.json.gz")
    assert code == 1
    assert "WRONG for 1 message" in out

    code, out, _ = demo("--history", RIVER / "river.ndjson.gz", "--tree", _file(tmp_path / "tree", '{"Makefile": "0"}'))
    assert code == 1
    assert "WRONG, 412 files differ" in out


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
