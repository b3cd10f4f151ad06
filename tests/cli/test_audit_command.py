"""`headrace audit`: what commands changed, with a database and through a server."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import BOTH_WAYS, Operator


@BOTH_WAYS
def test_commands_leave_entries_that_the_command_lists(operator: Operator) -> None:
    operator.out("stream", "add", "orders")
    operator.out("consumer", "add", "orders", "ship")
    operator.out("consumer", "seek", "orders", "ship", "end")
    entries = operator.json("audit")
    assert [entry["action"] for entry in entries] == ["consumer.seek", "consumer.create", "stream.create"]
    assert {entry["via"] for entry in entries} == {"http" if operator.over_http else "cli"}
    assert operator.over_http or all("@" in entry["actor"] for entry in entries)
    assert operator.json("audit", "--action", "stream", "--stream", "orders") == entries[2:]
    assert "consumer.seek" in operator.out("audit", "--limit", 1)
    assert operator.json("audit", "--until", "1h", "--action", "stream") == []


def test_applied_files_and_grants_leave_entries(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("name: shop\nstreams:\n  orders:\n    consumers:\n      ship:\n        max_deliver: 3\n")
    operator.out("apply", file)
    operator.out("apply", file)
    entries = operator.json("audit")
    assert [entry["action"] for entry in entries] == ["consumer.create", "stream.create"]
    assert entries[0]["details"] == {"configuration": True, "settings": {"max_deliver": 3}}
    file.write_text("name: shop\nstreams: {}\n")
    operator.out("apply", file, "--prune", "--allow-delete", "--yes")
    assert [entry["action"] for entry in operator.json("audit")[:2]] == ["stream.delete", "consumer.delete"]


def test_a_plan_leaves_no_entry(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("name: shop\nstreams:\n  orders: {}\n")
    operator.out("plan", file)
    assert operator.json("audit") == []
