"""All tests of a run share one server. A test that looks at the sessions of its neighbours waits for them, or ends
them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
VIEWS = ("pg_stat_activity", "from pg_locks")
# The database, or something that no other test has: a process id, a name made up by the test.
OWN = ("current_database()", "datname = 'headrace'", "pid =", "usename = $1", "usename = 'clerk'")
SERVERS_OF_THEIR_OWN = {"test_backfill_unseen.py", Path(__file__).name}


def statements(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_statements_about_sessions_name_the_database() -> None:
    paths = [path for path in TESTS.rglob("*.py") if path.name not in SERVERS_OF_THEIR_OWN]
    of_sessions = [
        (path.name, text)
        for path in paths
        for text in statements(path)
        if "select" in text and any(view in text for view in VIEWS)
    ]
    assert len(of_sessions) > 20
    assert [found for found in of_sessions if not any(own in found[1] for own in OWN)] == []
