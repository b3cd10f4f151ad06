"""`headrace source postgres` and `source backfill`, on a database and on a server in front of one. The commands of operations are
tried on a server by `tests/client/test_doors.py`."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.model.capture import CaptureFacts, Differences
from headrace.store import CaptureBatch, CaptureFailure, ChunkDone
from tests.cli.conftest import BOTH_WAYS, Operator
from tests.support.capturers import begun

NOWHERE = "postgresql://shop:hush@127.0.0.1:1/shop"
ADD = ("source", "postgres", "add")


@pytest.fixture
def shop(operator: Operator) -> Operator:
    """The tables `orders` and `items`, with replica identity full."""
    for table in ("orders", "items"):
        _run(operator.dsn, f"create table {table} (id int primary key, total numeric)")
        _run(operator.dsn, f"alter table {table} replica identity full")
    return operator


def _run(dsn: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


def _as_capturer(dsn: str, name: str, *captured: CaptureBatch, **output: Any) -> None:
    """Append changes and report state as a capturing process that has since ended."""

    async def run() -> None:
        database = store.Database(dsn, max_connections=1)
        await database.open()
        try:
            number, epoch = await begun(database, name)
            for one in captured:
                for chunk in one.chunks:
                    assert await store.begin_backfill(database, number, epoch, chunk.id, 1000)
                await store.append_captured(database, number, epoch, "orders", one)
            await store.report_capture(database, number, epoch, output.pop("state", "running"), **output)
        finally:
            await database.close()

    asyncio.run(run())


@BOTH_WAYS
def test_a_table_is_captured_under_its_own_name(shop: Operator) -> None:
    ended = shop.call(*ADD, "--table", "public.orders")
    assert (
        ended.out == "Created the source 'orders'. It captures public.orders into the new stream 'orders' as changes.\n"
    )
    assert "headrace serve" in ended.err
    assert shop.out(*ADD, "--table", "public.orders").startswith("Unchanged: the source 'orders'")
    assert "rate is None and not 5" in shop.refused(65, *ADD, "--table", "public.orders", "--rate", "5", "--no-check")
    assert shop.json("source", "postgres", "info", "orders") == shop.json("source", "info", "orders")


@BOTH_WAYS
def test_a_stream_in_use_is_not_filled_by_mistake(shop: Operator) -> None:
    shop.call("stream", "add", "live")
    shop.send("live", ("a", 1))
    adding = (*ADD, "--table", "public.orders", "--stream", "live", "--no-check")
    refused = shop.refused(64, *adding)
    assert "'live' exists, with 1 message and 0 consumers. It would get every change" in refused
    assert "--into-existing" in refused
    assert shop.json("source", "ls") == []
    assert "into the stream 'live'" in shop.out(*adding, "--into-existing")
    assert shop.out(*adding).startswith("Unchanged")


@BOTH_WAYS
def test_a_source_with_every_setting(operator: Operator, tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text(f"{NOWHERE}\n")
    operator.call(
        *ADD, "shop", "--table", "public.orders", "--table", "public.Items".lower(), "--stream", "all", "--from-file", url,
        "--columns", "public.orders=id, total", "--actions", "insert,update", "--where", "data.record.total>100",
        "--group", "id", "--numeric", "number", "--transform", "shop.capture:slim", "--no-backfill", "--rate", "5000",
        "--slot", "theirs", "--publication", "theirs too", "--heartbeat", "30s", "--verify-every", "1d", "--alarm", "5GB", "--no-check",
    )  # fmt: skip
    source = operator.json("source", "info", "shop")
    assert source["settings"] == {
        "tables": ["public.orders", "public.items"], "mode": "changes", "database": NOWHERE.replace("hush", "…"),
        "columns": {"public.orders": ["id", "total"]}, "actions": ["insert", "update"], "where": "data.record.total > 100",
        "group": ["id"], "key": None, "sort": None, "deletes": "ignore", "numeric": "number",
        "transform": "shop.capture:slim", "backfill": False, "rate": 5000, "slot": "theirs", "shared_slot": None, "publication": "theirs too",
        "heartbeat": 30.0, "verify_every": 86400.0, "alarm": 5_000_000_000,
    }  # fmt: skip
    shown = operator.out("source", "info", "shop")
    for words in (
        "public.orders (id, total)",
        "theirs too",
        "every 30s",
        "at 5 GB",
        "not automatically, at most 5,000 rows/s",
    ):
        assert words in shown
    assert "hush" not in shown
    operator.call(
        *ADD, "rows", "--table", "public.orders", "--mode", "rows", "--sort", "total", "--deletes", "tombstone",
        "--key", "o.{record.id}", "--no-check",
    )  # fmt: skip
    assert operator.json("stream", "info", "rows")["stream"]["one_message_per_key"]
    assert operator.json("source", "info", "rows")["settings"]["key"] == "o.{record.id}"


@BOTH_WAYS
def test_adding_checks_first_and_prints_what_mends_it(shop: Operator) -> None:
    _run(shop.dsn, "alter table orders replica identity default")
    ended = shop.call(*ADD, "x", "--table", "public.orders", "--table", "public.nope", code=78)
    assert ended.out == ""
    assert "To fix it: alter table public.orders replica identity full;" in ended.err
    assert "no table public.nope" in ended.err
    assert "--no-check" in ended.err
    assert shop.json("source", "ls") == []
    assert shop.json("stream", "ls") == []


def test_a_check_prints_its_findings_and_the_exit_code_says_whether_capture_can_work(shop: Operator) -> None:
    shop.call(*ADD, "--table", "public.orders", "--no-check")
    output = shop.out("source", "postgres", "check", "orders")
    assert "wal_level is logical" in output
    assert "To fix it" not in output
    assert {one["level"] for one in shop.json("source", "postgres", "check", "orders")} == {"ok"}
    shop.call(*ADD, "gone", "--table", "public.gone", "--no-check")
    ended = shop.call("source", "postgres", "check", "gone", code=1)
    assert "ERROR" in ended.out
    assert "can't be captured because of 1 error" in ended.err
    assert "error" in {one["level"] for one in shop.json("source", "postgres", "check", "gone", code=1)}


REFUSED = [
    (64, "add", "table to capture"),
    (64, "add --table public.orders --table public.items", "need a name"),
    (64, "add orders", "table to capture"),
    (64, "add --table öä", "No name"),
    (78, "add --table orders --no-check", "Add the schema"),
    (64, "add --table public.orders --columns id", "public.orders=id,status"),
    (78, "add --table public.orders --columns public.nope=id --no-check", "not one of its tables"),
    (64, "add --table public.orders --mode tables", "--mode"),
    (78, "add --table public.orders --sort id --no-check", "mode='rows'"),
    (78, "add --table public.orders --actions drop --no-check", "'drop'"),
    (64, "add --table public.orders --rate fast", "--rate"),
    (64, "add --table public.orders --alarm much", "--alarm"),
    (64, "add --table public.orders --heartbeat often", "--heartbeat"),
    (78, "add --table public.orders --where data.record. --no-check", "where"),
    (64, "add --table public.orders --from x --from-file y", "not both"),
    (66, "add --table public.orders --from-file /nowhere", "/nowhere"),
    (78, "add --table public.orders --mode rows --stream plain --no-check", "'plain' keeps every message"),
    (64, "edit orders", "nothing to change"),
    (66, "edit nope --rate 5", "'nope'"),
    (65, "edit hook --rate 5", "webhook"),
    (78, "edit orders --sort id", "mode='rows'"),
    (66, "pause nope", "'nope'"),
    (65, "pause hook", "captures no table"),
    (65, "check hook", "captures no table"),
    (66, "backfill start nope", "'nope'"),
    (65, "backfill start orders --table public.nope", "has no table 'public.nope'"),
    (65, "backfill start orders --where data.record.nope=1", "nope"),
    (64, "backfill start orders --rate none", "--rate"),
    (65, "backfill cancel orders nope --yes", "not the id of a backfill"),
    (66, "failures ls nope", "'nope'"),
    (64, "failures retry orders --id 0", "--id"),
]  # fmt: skip


@BOTH_WAYS
def test_invalid_input_is_refused_in_one_sentence_and_nothing_is_done(shop: Operator) -> None:
    shop.call("stream", "add", "plain")
    shop.call("source", "webhook", "add", "hook", "--stream", "plain")
    shop.call(*ADD, "--table", "public.orders", "--no-backfill", "--no-check")
    before = _set(shop)
    for code, words, expected in REFUSED:
        name = words.replace("add --table", "add x --table") if "--no-check" in words else words
        assert expected in shop.refused(code, "source", "postgres", *name.split(" ")), words
    assert _set(shop) == before


def _set(shop: Operator) -> list[Any]:
    sources = [(one["name"], one["settings"]) for one in shop.json("source", "ls")]
    return [sources, shop.json("source", "backfill", "ls"), [one["name"] for one in shop.json("stream", "ls")]]


@BOTH_WAYS
def test_an_edit_changes_only_what_is_given(shop: Operator) -> None:
    shop.call(
        *ADD,
        "--table",
        "public.orders",
        "--rate",
        "5",
        "--where",
        "data.record.id > 1",
        "--from",
        NOWHERE,
        "--no-check",
    )
    before = shop.json("source", "info", "orders")["settings"]
    output = shop.out("source", "postgres", "edit", "orders", "--heartbeat", "1m", "--columns", "public.orders=id")
    assert "every 1m" in output
    assert shop.json("source", "info", "orders")["settings"] == {
        **before, "heartbeat": 60.0, "columns": {"public.orders": ["id"]}
    }  # fmt: skip
    unset = ("--heartbeat", "--columns", "--rate", "--where", "--from", "--group", "--key", "--transform", "--sort")
    words = [word for option in unset for word in (option, "none")]
    changed = shop.json("source", "postgres", "edit", "orders", *words, "--no-backfill")["settings"]
    assert changed == {
        **before, "heartbeat": None, "columns": {}, "rate": None, "where": None, "database": None, "backfill": False
    }  # fmt: skip


@BOTH_WAYS
@pytest.mark.parametrize(
    "change", [("--columns", "public.orders=id,prize"), ("--where", "data.record.prize > 1"), ("--group", "prize")]
)
def test_an_edit_that_names_an_unknown_column_is_refused(shop: Operator, change: tuple[str, str]) -> None:
    shop.call(*ADD, "--table", "public.orders", "--no-check")
    edit = ("source", "postgres", "edit", "orders")
    for more in ((), ("--no-check",)):
        assert "'prize', which public.orders does not have" in shop.refused(78, *edit, *change, *more)
    assert "prize" not in shop.call(*edit, change[0], "none").err


@BOTH_WAYS
def test_both_kinds_are_listed_each_with_what_matters_of_it(shop: Operator) -> None:
    assert "source postgres add" in shop.call("source", "postgres", "ls").err
    shop.call("stream", "add", "forms")
    shop.call("source", "webhook", "add", "hook", "--stream", "forms")
    shop.call(*ADD, "--table", "public.orders", "--no-check")
    shop.call("source", "postgres", "pause", "orders")
    assert [one["name"] for one in shop.json("source", "ls")] == ["hook", "orders"]
    assert [one["name"] for one in shop.json("source", "postgres", "ls")] == ["orders"]
    lines = shop.out("source", "ls").splitlines()
    assert lines[1].split()[:4] == ["hook", "webhook", "forms", "–"]
    assert lines[2].split() == ["orders", "postgres", "orders", "paused", "changes", "of", "public.orders"]


@BOTH_WAYS
def test_the_state_of_a_capture_is_printed(shop: Operator) -> None:
    shop.call(*ADD, "--table", "public.orders", "--no-check")
    assert "unattended" in shop.out("source", "ls")
    facts = CaptureFacts(
        held_back=3_000_000, wal_status="reserved", safe_wal_size=10**9, behind=2000, rate=12.4, alarm="The disk fills."
    )
    failed = CaptureBatch(failures=[CaptureFailure(key="k", data="1", error="no")], position="0/20", captured=7)
    _as_capturer(shop.dsn, "orders", failed, facts=facts)
    shown = shop.out("source", "info", "orders")
    for words in (
        "running",
        "0/20",
        "7 changes",
        "12 changes/s",
        "3 MB, slot reserved",
        "1 GB of WAL",
        "The disk fills.",
        "1 change, see",
    ):
        assert words in shown
    assert "running!" in shop.out("source", "ls")
    assert "The disk fills." in shop.out("source", "ls")
    shop.call("source", "postgres", "pause", "orders")
    shop.call("source", "postgres", "resume", "orders")
    _as_capturer(shop.dsn, "orders", state="stopped", reason="The slot is gone.", mend="mend it so")
    assert "The slot is gone." in shop.out("source", "ls")
    shown = shop.out("source", "info", "orders")
    assert "mend it so" in shown
    shop.call("source", "postgres", "pause", "orders")
    assert "mend it so" not in shop.out("source", "info", "orders")


def test_pausing_and_resuming(shop: Operator) -> None:
    shop.call(*ADD, "--table", "public.orders", "--no-check")
    assert "keeps WAL until you run `headrace source postgres resume orders`" in shop.out(
        "source", "postgres", "pause", "orders"
    )
    assert shop.json("source", "postgres", "pause", "orders")["capture"]["state"] == "paused"
    assert "Resumed" in shop.out("source", "postgres", "resume", "orders")
    assert shop.json("source", "postgres", "resume", "orders")["capture"]["paused_at"] is None
    assert "Resumed the source 'orders'" in shop.out("source", "postgres", "resume", "orders", "--anew")


def test_backfills_are_started_watched_and_cancelled(shop: Operator) -> None:
    assert "There are no backfills" in shop.call("source", "backfill", "ls").err
    shop.call(*ADD, "shop", "--table", "public.orders", "--table", "public.items", "--no-backfill", "--no-check")
    (made,) = shop.json(
        "source", "backfill", "start", "shop", "--table", "public.items", "--where", "data.record.id > 5", "--rate", "9"
    )
    assert (made["table"], made["rate"], made["state"]) == ("public.items", 9, "queued")
    assert made["where"] == {"field": "data.record.id", "op": ">", "value": 5}
    assert "Queued a backfill of public.orders" in shop.out("source", "postgres", "backfill", "start", "shop")
    assert "public.orders" in shop.refused(75, "source", "backfill", "start", "shop")
    assert [one["table"] for one in shop.json("source", "backfill", "ls", "shop")] == ["public.orders", "public.items"]
    assert "Cancelled: 1 backfill." in shop.out("source", "backfill", "cancel", "shop", made["id"], "--yes")
    assert shop.json("source", "backfill", "cancel", "shop", "--yes") == {"cancelled": 1}
    assert "Cancelled: 0 backfills." in shop.out("source", "backfill", "cancel", "shop", "--yes", code=1)
    lines = shop.out("source", "postgres", "backfill", "ls").splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["shop", "public.orders", "backfill"], ["shop", "public.items", "backfill"]
    ]  # fmt: skip


def test_a_verification_is_started_and_its_result_is_printed(shop: Operator) -> None:
    shop.call(*ADD, "orders", "--table", "public.orders", "--mode", "rows", "--no-check")
    assert "Queued a verification of public.orders" in shop.out("source", "postgres", "verify", "orders", "--no-wait")
    assert shop.json("source", "postgres", "verify", "orders", "--no-wait", "--repair")[0]["kind"] == "repair"
    found = Differences(differs=2, extra=1, kept=1)
    chunk = ChunkDone(id=1, place=["420"], read=420, published=0, done=True, differences=found)
    _as_capturer(shop.dsn, "orders", CaptureBatch(chunks=[chunk]))
    lines = shop.out("source", "backfill", "ls", "orders").splitlines()
    assert lines[2].startswith("orders  public.orders  verification  done")
    assert lines[2].endswith("2 differ, 1 extra, 1 kept")


@BOTH_WAYS
def test_the_progress_of_a_backfill_is_printed(shop: Operator) -> None:
    shop.call(*ADD, "--table", "public.orders", "--no-backfill", "--no-check")
    shop.call("source", "backfill", "start", "orders")
    chunk = ChunkDone(id=1, place=["420"], read=420, published=400, done=False)
    _as_capturer(shop.dsn, "orders", CaptureBatch(chunks=[chunk]))
    (backfill,) = shop.json("source", "backfill", "ls")
    assert (backfill["read"], backfill["total"], backfill["published"], backfill["done"]) == (420, 1000, 400, 0.42)
    assert backfill["time_left"] > 0
    line = shop.out("source", "backfill", "ls").splitlines()[1]
    assert line.split()[:8] == ["orders", "public.orders", "backfill", "running", "420", "1,000", "400", "42"]
    assert "42 %" in shop.out("source", "info", "orders")


def test_no_question_is_asked_without_a_terminal(shop: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.call(*ADD, "--table", "public.orders", "--no-check")
    shop.call("source", "backfill", "start", "orders")
    with open("/dev/null") as no_terminal:
        monkeypatch.setattr("sys.stdin", no_terminal)
        for words in ("rm orders", "backfill cancel orders", "postgres failures drop orders"):
            assert "--yes" in shop.refused(64, "source", *words.split(" "))


def test_failed_changes_are_listed_tried_again_and_dropped(shop: Operator) -> None:
    shop.call(*ADD, "--table", "public.orders", "--no-check")
    assert "There are no failed changes" in shop.call("source", "postgres", "failures", "ls", "orders").err
    failures = [CaptureFailure(key=key, data='{"n": 1}', error="ValueError: no") for key in ("a", None, "c")]
    _as_capturer(shop.dsn, "orders", CaptureBatch(failures=failures))
    head, *lines = shop.out("source", "postgres", "failures", "ls", "orders").splitlines()
    assert head.split() == ["id", "key", "failed", "attempts", "retry", "error", "change"]
    assert [line.split()[1] for line in lines] == ["a", "–", "c"]
    assert "--above 2" in shop.call("source", "postgres", "failures", "ls", "orders", "--limit", "2").err
    assert [one["id"] for one in shop.json("source", "postgres", "failures", "ls", "orders", "--above", "1")] == [2, 3]
    assert shop.json("source", "postgres", "failures", "retry", "orders", "--id", "1") == {"retried": 1}
    assert "queued" in shop.out("source", "postgres", "failures", "ls", "orders")
    assert "To be retried: 2 changes" in shop.out("source", "postgres", "failures", "retry", "orders")
    assert "0 changes" in shop.out("source", "postgres", "failures", "retry", "orders", code=1)
    assert "Dropped: 1 change." in shop.out("source", "postgres", "failures", "drop", "orders", "--id", "2", "--yes")
    assert shop.json("source", "postgres", "failures", "drop", "orders", "--yes") == {"dropped": 2}


@BOTH_WAYS
def test_a_source_with_a_slot_that_cannot_be_dropped_is_removed_by_force_only(shop: Operator) -> None:
    shop.call(*ADD, "--table", "public.orders", "--from", NOWHERE, "--no-check")
    output = shop.refused(75, "source", "rm", "orders", "--yes")
    assert "select pg_drop_replication_slot('headrace_orders_" in output
    assert "--force" in output
    assert len(shop.json("source", "ls")) == 1
    ended = shop.call("source", "postgres", "rm", "orders", "--yes", "--force")
    assert ended.out == "Removed the source 'orders'.\n"
    assert "pg_drop_replication_slot" in ended.err
    assert shop.json("source", "ls") == []


@BOTH_WAYS
def test_no_list_of_backfills_ends_silently_at_its_first_page(shop: Operator) -> None:
    tables = [f"public.t{n:03}" for n in range(120)]
    shop.call(*ADD, "shop", *(word for table in tables for word in ("--table", table)), "--no-check", "--no-backfill")
    _as_capturer(shop.dsn, "shop")
    assert [one["table"] for one in shop.json("source", "backfill", "start", "shop")] == tables
    ended = shop.call("source", "backfill", "ls", "shop")
    assert len(ended.out.splitlines()) == 101
    assert "--limit" in ended.err
    ended = shop.call("source", "backfill", "ls", "--limit", "121")
    assert len(ended.out.splitlines()) == 121
    assert ended.err == ""
    assert shop.out("source", "info", "shop").count("backfill of") == 120
    assert "Cancelled: 120 backfills." in shop.out("source", "backfill", "cancel", "shop", "--yes")


CURLS = [
    ("postgres add --table public.orders", "POST", "/sources",
     {"kind": "postgres", "name": "orders", "stream": "orders", "tables": ["public.orders"]}),
    ("postgres edit orders --rate none", "PATCH", "/sources/orders", {"rate": None}),
    ("postgres check orders", "POST", "/sources/orders/check", {}),
    ("postgres pause orders", "POST", "/sources/orders/pause", {}),
    ("postgres resume orders --anew", "POST", "/sources/orders/resume", {"anew": True}),
    ("postgres info orders", "GET", "/sources/orders", None),
    ("postgres rm orders --force", "DELETE", "/sources/orders?force=true", None),
    ("backfill start orders --table public.orders --where data.record.id=1", "POST", "/sources/orders/backfills",
     {"tables": ["public.orders"], "where": "data.record.id=1"}),
    ("postgres verify orders --repair", "POST", "/sources/orders/verify", {"repair": True}),
    ("backfill ls", "GET", "/backfills?limit=100", None),
    ("backfill ls orders --limit 5", "GET", "/sources/orders/backfills?limit=5", None),
    ("backfill cancel orders", "POST", "/sources/orders/backfills/cancel", {}),
    ("postgres failures ls orders --above 5", "GET", "/sources/orders/failures?above=5&limit=100", None),
    ("postgres failures retry orders --id 1 --id 2", "POST", "/sources/orders/failures/retry", {"ids": [1, 2]}),
    ("postgres failures drop orders", "POST", "/sources/orders/failures/drop", {}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "method", "path", "body"), CURLS)
def test_each_command_is_one_request_to_be_copied(
    operator: Operator, words: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    printed = shlex.split(operator.out("source", *words.split(" "), "--as-curl"))
    assert printed[0] == "curl"
    assert (printed[printed.index("-X") + 1] if "-X" in printed else "GET") == method
    assert f"http://localhost:7376/v1{path}" in printed
    assert (json.loads(printed[printed.index("-d") + 1]) if "-d" in printed else None) == body
