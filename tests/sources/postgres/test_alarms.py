"""Detection of problems of a replication slot, and their descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.capture import CaptureFacts
from headrace.sources.postgres.capture.alarms import Alarm, Kind, alarm_of

GB = 1_000_000_000


def _alarm(current: Kind | None = None, **facts: Any) -> Alarm | None:
    return alarm_of(CaptureFacts(**facts), source="shop", slot="headrace_shop_1", limit=GB, current=current)


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({}, None),
        ({"held_back": GB - 1, "wal_status": "reserved"}, None),
        ({"held_back": GB, "wal_status": "reserved"}, "large"),
        ({"held_back": GB // 2, "wal_status": "extended"}, None),  # more than max_wal_size is no problem
        ({"held_back": GB // 2, "wal_status": "unreserved", "safe_wal_size": 0}, "unreserved"),
        ({"wal_status": "lost"}, "lost"),
        ({"held_back": 79_000_000, "safe_wal_size": 21_000_000, "wal_status": "reserved"}, None),
        ({"held_back": 80_000_000, "safe_wal_size": 20_000_000, "wal_status": "reserved"}, "tight"),
        ({"held_back": 80_000_000, "safe_wal_size": -5, "wal_status": "extended"}, "tight"),
        ({"held_back": 2 * GB, "safe_wal_size": 100 * GB, "wal_status": "extended"}, "large"),
        ({"held_back": 0, "safe_wal_size": 0, "wal_status": "reserved"}, "tight"),
    ],
)
def test_each_problem_is_recognized_from_the_facts_of_the_server(facts: dict[str, Any], kind: str | None) -> None:
    found = _alarm(**facts)
    assert (None if found is None else found.kind) == kind


@pytest.mark.parametrize(
    ("current", "facts"),
    [
        ("large", {"held_back": int(0.85 * GB)}),
        ("tight", {"held_back": 70_000_000, "safe_wal_size": 30_000_000}),
    ],
)
def test_a_figure_that_oscillates_around_a_limit_raises_one_alarm(current: Kind, facts: dict[str, Any]) -> None:
    assert _alarm(**facts) is None
    found = _alarm(current, **facts)
    assert found is not None
    assert found.kind == current
    assert _alarm(current, **{**facts, "held_back": facts["held_back"] // 2}) is None


def test_without_a_limit_it_says_that_the_disk_fills() -> None:
    found = _alarm(held_back=5 * GB, behind=5 * GB, wal_status="extended")
    assert found is not None
    assert "headrace_shop_1 holds back 5 GB of WAL" in found.text
    assert "max_slot_wal_keep_size is not set, so it can grow until the server's disk is full" in found.text
    assert (
        "The capture of shop is 5 GB behind. It has to catch up. To see what it waits for, run: headrace source postgres info shop"
        in found.text
    )


def test_with_a_limit_it_says_when_the_slot_is_lost_and_how_the_limit_is_raised() -> None:
    found = _alarm(held_back=9 * 2**30, behind=9 * 2**30, safe_wal_size=2**30, wal_status="extended")
    assert found is not None
    assert "1.07 GB more reach max_slot_wal_keep_size. Then the slot is lost" in found.text
    assert "alter system set max_slot_wal_keep_size = '20480MB'; select pg_reload_conf();" in found.text


def test_a_long_open_transaction_is_distinguished_from_a_lagging_capture() -> None:
    found = _alarm(held_back=5 * GB, behind=1000, wal_status="extended")
    assert found is not None
    assert "The capture keeps up, so an old open transaction holds it back" in found.text
    assert "pg_stat_activity where backend_xid is not null" in found.text
    assert "catch up" not in found.text


def test_a_slot_that_is_lost_needs_a_fresh_backfill() -> None:
    found = _alarm(wal_status="lost")
    assert found is not None
    assert found.text.endswith("headrace source postgres resume shop --anew")


def test_the_alarm_of_a_shared_slot_names_the_source_that_holds_it() -> None:
    facts = CaptureFacts(held_back=5 * GB, behind=5 * GB, wal_status="extended")
    found = alarm_of(facts, source="shop", slot="shared", limit=GB, held_by="paused")
    assert found is not None
    assert "The capture of paused is 5 GB behind" in found.text
    lost = alarm_of(CaptureFacts(wal_status="lost"), source="shop", slot="shared", limit=GB, held_by="paused")
    assert lost is not None
    assert "resume shop --anew" in lost.text
