"""`headrace plan`, `apply` and `export` on real Postgres."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest

from headrace import store
from headrace.admin import configuration
from headrace.cli.errors import CannotCreate
from headrace.cli.main import call
from headrace.model.errors import InUse
from tests.cli.conftest import Operator
from tests.configuration.conftest import Write

DATABASES_PAGE = Path(__file__).parents[2] / "docs" / "databases.md"

SHOP = """
    name: shop
    streams:
      orders:
        retain_up_to: 30d
        max_storage: 10GB
        consumers:
          us_orders: {filter: orders.us.>, where: data.total > 100, ack_wait: 1m, backoff: [1s, 10s], deliver_policy: new}
          hook:
            push: {url: "https://example.com/${HOOK}", headers: {authorization: "Bearer ${HOOK}"}, timeout: 5s}
      latest:
        one_message_per_key: true
        tombstones: true
        consumers: {fragment: {push: {url: "https://example.com#hunter2"}}}
      payments:
    sources:
      stripe: {kind: webhook, stream: payments, signature: stripe, secrets: ["${STRIPE}"], max_body: 1MB}
      rows: {kind: postgres, stream: latest, tables: [public.items], mode: rows, database: "postgresql://u:hunter2@h/d", where: data.record.id > 1}
    tokens:
      shop: {scopes: [publish:orders], expires_in: 30d}
    """


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "h${x}'\"")
    monkeypatch.setenv("STRIPE", "whsec secret")


def changed(operator: Operator, *words: object, code: int = 0) -> list[tuple[str, str]]:
    """The actions of a plan, and their objects."""
    found = operator.json("plan", *words, code=code)
    return [(one["action"], "/".join(one["object"])) for one in found["changes"]]


def test_a_second_apply_has_nothing_to_do_and_writes_nothing(operator: Operator, write: Write) -> None:
    file = write(SHOP)
    assert len(changed(operator, file, "--detailed-exitcode", code=2)) == 9
    assert "9 objects created" in operator.out("apply", file)
    before = _transactions(operator)
    assert operator.out("apply", file) == "Nothing to do.\n"
    assert _transactions(operator) == before
    assert operator.out("plan", file, "--detailed-exitcode") == "Nothing to do.\n"


def _transactions(operator: Operator) -> Any:
    """The rows of what applies write, with the ids of the transactions that wrote them."""
    with psycopg.connect(operator.dsn) as connection:
        return [
            connection.execute(f"select xmin::text, * from headrace_internal.{table}").fetchall()
            for table in ("streams", "consumers", "sources", "tokens", "managed", "captures")
        ]


def test_an_export_applied_elsewhere_makes_the_same(
    operator: Operator, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second_dsn: str
) -> None:
    operator.call("apply", write(SHOP))
    secrets = tmp_path / "secrets.env"
    text = operator.out("export", "--name", "shop", "--secrets-out", secrets)
    assert "whsec secret" not in text
    assert "Bearer" not in text
    assert "hunter2" not in text
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    for line in shlex.split(secrets.read_text()):
        monkeypatch.setenv(*line.split("=", 1))
    exported = write(text, "exported.yaml")
    assert operator.out("plan", exported) == "Nothing to do.\n"
    operator.call("apply", exported, "--database", second_dsn)
    assert operator.out("plan", exported, "--database", second_dsn) == "Nothing to do.\n"
    assert operator.out("export", "--name", "shop", "--database", second_dsn) == text


@pytest.fixture
def second_dsn(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Another database of the same server."""
    name = f"other_{uuid4().hex}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}")  # type: ignore[call-overload]
        other = urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
        assert call(["migrate", "--database", other]) == 0
        yield other
        connection.execute(f"drop database {name} with (force)")  # type: ignore[call-overload]


def test_a_plan_shows_each_value_and_what_it_means(operator: Operator, write: Write) -> None:
    operator.call("apply", write(SHOP))
    file = write(SHOP.replace("30d", "7d").replace("orders.us", "orders.eu").replace("publish:orders", "consume"))
    found = {one["kind"]: one for one in operator.json("plan", file)["changes"]}
    assert set(found) == {"stream", "consumer", "token"}
    (field,) = found["stream"]["fields"]
    assert (field["before"], field["after"], found["stream"]["destructive"]) == ("30d", "7d", True)
    assert "older than 7 days will be removed" in field["effect"]
    assert "has not reached" in found["consumer"]["fields"][0]["effect"]
    refused = operator.call("apply", file, code=64)
    assert "give --yes" in refused.err
    assert "3 objects changed" in operator.out("apply", file, "--yes")
    assert operator.json("stream", "info", "orders")["stream"]["retain_up_to"] == 7 * 86400


def test_what_the_files_leave_out_stays(operator: Operator, write: Write) -> None:
    operator.call("apply", write(SHOP))
    file = write(
        "name: shop\nstreams: {orders: {retain_up_to: null, consumers: {us_orders: {ack_wait: 2m}}}}", "part.yaml"
    )
    assert "stays. --prune deletes it" in operator.out("plan", file)
    operator.call("apply", file)
    found = operator.json("consumer", "info", "orders", "us_orders")
    assert (found["settings"]["ack_wait"], found["settings"]["filters"]) == (120, ["orders.us.>"])
    stream = operator.json("stream", "info", "orders")["stream"]
    assert (stream["retain_up_to"], stream["max_storage"]) == (None, 10**10)


def test_prune_deletes_only_what_the_configuration_manages(operator: Operator, write: Write) -> None:
    operator.call("stream", "add", "byhand")
    operator.call("apply", write("name: a\nstreams: {one: , two: , shared: , again: }"))
    operator.call("apply", write("name: b\nstreams: {shared: , three: }", "b.yaml"))
    operator.call("stream", "rm", "again", "--yes")
    operator.call("stream", "add", "again")
    operator.send("two", ("k", 1))
    file = write("name: a\nstreams: {one: }", "less.yaml")
    refused = operator.call("apply", file, "--prune", "--yes", code=75).err
    assert "It has 1 message." in refused
    assert "--allow-delete" in refused
    operator.call("apply", file, "--prune", "--yes", "--allow-delete")
    assert sorted(one["name"] for one in operator.json("stream", "ls")) == ["again", "byhand", "one", "shared", "three"]
    assert operator.out("plan", file, "--prune") == "Nothing to do.\n"
    unnamed = write("streams: {one: }", "unnamed.yaml")
    assert "give it one at the top" in operator.refused(78, "plan", unnamed, "--prune")


def test_a_token_is_shown_once_or_written_to_a_new_file(operator: Operator, write: Write, tmp_path: Path) -> None:
    file, secrets = write("tokens: {a: {scopes: [admin]}}"), tmp_path / "tokens.env"
    operator.call("apply", file, "--tokens-out", secrets)
    assert secrets.read_text().startswith("a=hr_")
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    more = write("tokens: {a: {scopes: [admin]}, b: {scopes: [consume]}}")
    assert "exists" in operator.call("apply", more, "--tokens-out", secrets, code=73).err
    assert [one["name"] for one in operator.json("token", "ls")] == ["a"], "without its file no token is made"
    assert operator.json("apply", more)["new_tokens"]["b"].startswith("hr_")
    operator.call("token", "revoke", "b")
    assert "was revoked" in operator.refused(78, "plan", more)


def test_tokens_are_shown_although_a_deletion_fails(
    operator: Operator, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.call("apply", write("name: x\nstreams: {a: , b: }"))
    more = write("name: x\ntokens: {t: {scopes: [admin]}}")

    async def fail(*_: object) -> None:
        raise InUse("Workers use it.")

    with monkeypatch.context() as patched:
        patched.setattr(configuration.applying.removal, "delete", fail)
        ended = operator.call("apply", more, "--prune", "--yes", code=75)
    assert ended.out.startswith("t=hr_")
    assert "Save the secrets" in ended.err
    assert "2 objects deleted" in operator.out("apply", more, "--prune", "--yes")


def test_json_has_the_tokens_although_a_deletion_fails(
    operator: Operator, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.call("apply", write("name: x\nstreams: {a: }"))
    operator.send("a", ("a", 1))

    async def fail(*_: object) -> None:
        raise InUse("Workers use it.")

    monkeypatch.setattr(configuration.applying.removal, "delete", fail)
    more = write("name: x\ntokens: {t: {scopes: [admin]}}")
    assert "It has 1 message. Nothing was done." in operator.call("apply", more, "--prune", "--yes", code=75).err
    ended = operator.call("apply", more, "--prune", "--yes", "--allow-delete", "--json", code=75)
    assert json.loads(ended.out)["new_tokens"]["t"].startswith("hr_")


def test_a_secret_file_that_cannot_be_written_leaves_no_part(
    operator: Operator, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, secrets = write("tokens: {a: {scopes: [admin]}}"), tmp_path / "tokens.env"

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert "No space left" in operator.call("apply", file, "--tokens-out", secrets, code=73).err
    assert not secrets.exists()
    operator.call("apply", file, "--tokens-out", secrets)


def test_a_plan_says_which_database_is_meant(
    eu_dsn: str, operator: Operator, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file and the commands of docs/databases.md."""
    page = DATABASES_PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = write(text, "databases.yaml")
    monkeypatch.setenv("EU_DATABASE", eu_dsn)
    monkeypatch.chdir(file.parent)
    commands = re.findall(r"^headrace ((?:plan|apply|export)\b.*)$", page, re.MULTILINE)
    planned, applied, exported = (operator.out(*shlex.split(command)) for command in commands)
    assert "+ stream visits in eu\n" in planned
    assert "+ stream orders\n" in planned
    assert "5 objects created" in applied
    assert "  eu:\n    url_from: env:EU_DATABASE\n" in exported
    assert operator.out("plan", file) == "Nothing to do.\n"
    assert "stream visits in eu is no longer mentioned" in operator.out("plan", write("name: shop"))
    assert operator.out("plan", write(f"name: shop\n{exported}"), "--prune") == "Nothing to do.\n"


FORBIDDEN = [
        ("streams: {kept: {one_message_per_key: true}}", "1:39: `one_message_per_key` of the stream 'kept' is False"),
        ("streams: {kept: {consumers: {old: {deliver_policy: new}}}}", "1:52: `deliver_policy` counts only when"),
        ("streams: {kept: {consumers: {old: {max_deliver: 0}}}}", "1:49: `max_deliver`"),
        ("streams: {kept: {consumers: {old: {push: {url: nowhere}}}}}", "1:42: The push URL is invalid"),
        ("streams: {Kept: }", "1:11: The stream name 'Kept'"),
        ("sources: {a: {kind: webhook, stream: none}}", "1:38: The stream 'none' does not exist"),
        ("sources: {a: {kind: postgres, stream: kept, tables: [public.a], mode: rows}}", "one_message_per_key: true"),
        ("tokens: {a: {scopes: [everything]}}", "1:22: "),
        ("grants: {no_such_role: {publish: all}}", "1:34: There is no database role"),
]  # fmt: skip


def test_what_the_database_forbids_is_said_with_its_place(operator: Operator, write: Write) -> None:
    operator.call("stream", "add", "kept")
    operator.call("consumer", "add", "kept", "old")
    for text, expected in FORBIDDEN:
        error = operator.refused(78, "plan", write(text))
        assert expected in error
        assert "headrace.yaml:1:" in error


def test_a_role_gets_what_the_file_grants(operator: Operator, write: Write) -> None:
    role = f"shop_{uuid4().hex[:8]}"
    with psycopg.connect(operator.dsn, autocommit=True) as connection:
        connection.execute(f"create role {role} login")  # type: ignore[call-overload]
        try:
            file = write(
                f"name: g\nstreams: {{orders: , returns: }}\ngrants: {{{role}: {{publish: [orders, returns], observe: all}}}}"
            )
            operator.call("apply", file)
            assert operator.out("apply", file) == "Nothing to do.\n"
            less = write(f"name: g\nstreams: {{orders: , returns: }}\ngrants: {{{role}: {{publish: [orders]}}}}")
            operator.call("apply", less, "--prune", "--yes")
            assert [(one["privilege"], one["stream"]) for one in operator.json("grant", "ls")] == [
                ("publish", "orders")
            ]
        finally:
            connection.execute(f"drop owned by {role}; drop role {role}")  # type: ignore[call-overload]


def test_files_come_from_directories_and_standard_input(
    operator: Operator, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text("name: x\nstreams: {orders: }")
    (folder / "b.json").write_text(json.dumps({"streams": {"orders": {"consumers": {"c": {}}}}}, indent="\t"))
    (folder / "notes.txt").write_text("[")
    assert changed(operator, folder) == [("create", "orders"), ("create", "orders/c")]
    end = os.memfd_create("stdin")
    os.write(end, b"streams: {piped: }")
    os.lseek(end, 0, os.SEEK_SET)
    with open(end) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert changed(operator, "-") == [("create", "piped")]
    assert operator.refused(66, "plan", tmp_path / "none.yaml")
    assert operator.refused(64, "plan")
    assert "no option --prnue" in operator.refused(64, "plan", folder, "--prnue")
    monkeypatch.delenv("HEADRACE_DATABASE")
    monkeypatch.setenv("HEADRACE_SERVER", "http://localhost:7376")
    assert "need the database of the server" in operator.refused(64, "plan", folder)


@pytest.mark.asyncio
async def test_two_applies_do_not_mix(database: store.Database, write: Write) -> None:
    problems = configuration.Problems()
    declared = configuration.declared(configuration.read_documents("streams: {orders: }", "a", {}, problems))
    async with database.transaction() as connection:
        await store.lock_configurations(connection)
        with pytest.raises(InUse, match="Another `headrace apply`"):
            await configuration.apply(database, declared)


@pytest.mark.asyncio
async def test_nothing_is_done_if_the_database_changed_since_the_plan(database: store.Database) -> None:
    problems = configuration.Problems()
    text = "streams: {orders: {retain_up_to: 1d}, other: }"
    declared = configuration.declared(configuration.read_documents(text, "a", {}, problems))
    seen = await configuration.plan(database, declared)
    await store.create_stream(database, "orders")
    with pytest.raises(configuration.PlanChanged):
        await configuration.apply(database, declared, expected=seen)
    assert [one.name for one in await store.streams(database)] == ["orders"]


@pytest.mark.asyncio
async def test_a_failure_in_the_middle_undoes_everything(database: store.Database) -> None:
    problems = configuration.Problems()
    text = "name: x\nstreams: {orders: {consumers: {a: }}}\ntokens: {t: {scopes: [admin]}}"
    declared = configuration.declared(configuration.read_documents(text, "a", {}, problems))

    def fail(_: object) -> None:
        raise CannotCreate("no space left")

    with pytest.raises(CannotCreate, match="no space"):
        await configuration.apply(database, declared, save_tokens=fail)
    assert (await store.streams(database), await store.tokens(database), await store.managed(database, "x")) == (
        [],
        [],
        [],
    )
