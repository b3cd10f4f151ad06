"""How tests look at sessions of the server that all of them share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
VIEWS = ("pg_stat_activity", "from pg_locks")
# The database, or something that no other test has: a process id, a name made up by the test.
OWN = ("current_database()", "datname = 'headrace'", "pid =", "datname = %(name)s", "usename = $1", "usename = 'clerk'")
SERVERS_OF_THEIR_OWN = {"test_backfill_unseen.py", Path(__file__).name}


def statements(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_statements_about_sessions_name_the_database() -> None:
    """A test that looks at the sessions of its neighbours waits for them, or ends them."""
    paths = [path for path in TESTS.rglob("*.py") if path.name not in SERVERS_OF_THEIR_OWN]
    of_sessions = [
        (path.name, text)
        for path in paths
        for text in statements(path)
        if "select" in text and any(view in text for view in VIEWS)
    ]
    assert len(of_sessions) > 20
    assert [found for found in of_sessions if not any(own in found[1] for own in OWN)] == []


def test_a_session_is_at_work_when_it_waits_in_the_call_and_not_before() -> None:
    """A driver has a statement parsed before it is executed. The session is active then too, with the same text. A test
    that cancels the call in this moment cancels nothing on the server.
    """
    early = [
        (path.name, text)
        for path in TESTS.rglob("*.py")
        if path.name != Path(__file__).name
        for text in statements(path)
        if "pg_stat_activity" in text and "sleep" in text and "PgSleep" not in text
    ]
    assert early == []
