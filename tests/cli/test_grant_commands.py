"""`headrace grant`, `headrace revoke` and `headrace migrate --owner` on real Postgres."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cli.conftest import Operator
from tests.support import servers
from tests.support.roles import as_role

REFUSED = [
    (65, "grant publish no_such_role --stream orders", "create role"),
    (66, "grant publish ROLE --stream nothing", "'nothing'"),
    (65, "grant publish OWNER", "may do everything already"),
    (65, "revoke everything ROLE", "publish, consume, observe, admin"),
    (66, "revoke publish ROLE --stream nothing", "'nothing'"),
    (64, "grant publish", "ROLE"),
    (64, "grant everything ROLE", "everything"),
    (64, "migrate --owner ROLE --plan", "--owner"),
]


@pytest.fixture
def role(operator: Operator) -> Iterator[str]:
    """A role without grants. There is a stream `orders`."""
    name = f"app_{uuid4().hex[:12]}"

    async def execute(*statements: str) -> None:
        async with servers.opened(operator.dsn) as database:
            for statement in statements:
                await database.fetch(statement)

    servers.run(execute("select headrace.create_stream('orders')", f"create role {name} login password 'secret'"))
    yield name
    servers.run(execute(f"drop owned by {name}", f"drop role {name}"))


def test_a_command_that_can_t_be_done_says_why(operator: Operator, role: str) -> None:
    owner = servers.run(_owner(operator.dsn))
    for code, words, says in REFUSED:
        ended = operator.call(*shlex.split(words.replace("ROLE", role).replace("OWNER", owner)), code=code)
        assert says in ended.err
        assert "Traceback" not in ended.err


async def _owner(dsn: str) -> str:
    async with servers.opened(dsn) as database:
        return str(await database.fetchval("select current_user"))


def test_grants_are_listed_and_taken_back(operator: Operator, role: str) -> None:
    assert "No role has a grant" in operator.call("grant", "ls").err
    operator.out("grant", "publish", role, "--stream", "orders")
    operator.out("grant", "observe", role)
    table = operator.out("grant", "ls")
    assert re.search(rf"^{role} +publish +orders +\S+Z$", table, re.MULTILINE), table
    assert re.search(rf"^{role} +observe +all +\S+Z$", table, re.MULTILINE), table
    assert [(one["privilege"], one["stream"]) for one in operator.json("grant", "ls")] == [
        ("observe", None), ("publish", "orders"),
    ]  # fmt: skip
    assert "for all streams" in operator.call("revoke", "observe", role, "--stream", "orders", code=65).err
    for privilege in ("publish", "observe"):
        assert operator.out("revoke", privilege, role) == f"Removed 1 grant of the role {role}.\n"
    assert operator.out("revoke", "publish", role) == f"Removed 0 grants of the role {role}.\n"


def test_the_sql_is_printed_and_nothing_is_changed(operator: Operator, role: str) -> None:
    printed = operator.out("grant", "publish", role, "--stream", "orders", "--sql")
    assert printed.startswith("begin;")
    assert printed.endswith("commit;\n")
    assert operator.json("grant", "ls") == []


def test_a_role_with_a_grant_publishes_and_can_give_itself_nothing(
    operator: Operator, role: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operator.out("grant", "publish", role, "--stream", "orders")
    url = as_role(operator.dsn, role)
    monkeypatch.setenv("HEADRACE_DATABASE", url)
    lines = tmp_path / "events.ndjson"
    lines.write_text('{"key": "a", "data": 1}\n', encoding="utf-8")
    operator.out("publish", "orders", lines, "--database", url)
    operator.call("publish", "orders", lines, "--create", "--database", url, code=78)
    operator.call("publish", "secrets", lines, "--database", url, code=66)
    for words in (["grant", "admin", role], ["grant", "ls"], ["revoke", "publish", role]):
        ended = operator.call(*words, "--database", url, code=78)
        assert "member of the schema's owner" in ended.err
