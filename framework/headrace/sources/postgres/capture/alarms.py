"""Decides when a replication slot is in trouble, and words the alarm. Plain code without I/O.

A slot makes its server keep all WAL from the slot's restart_lsn on. Without a limit that fills the
server's disk. With a limit, which is max_slot_wal_keep_size, the server drops the WAL instead, and
the slot is lost. An alarm therefore depends on both how much WAL is held back and how much more may be.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.model.capture import CaptureFacts
from headrace.model.text.sizes import format_size

Kind = Literal["lost", "unreserved", "tight", "large"]

TIGHT_SHARE = 0.8
"""The share of max_slot_wal_keep_size at which the alarm `tight` begins."""

CLEAR_FACTOR = 0.8
"""An alarm ends below this share of the threshold at which it begins. A value that fluctuates
around the threshold thus gives one alarm, not many.
"""


class Alarm(msgspec.Struct, frozen=True):
    """A problem of a slot. `text` says what is wrong, what will happen, and what to do."""

    kind: Kind
    text: str


def alarm_of(
    facts: CaptureFacts, *, source: str, slot: str, limit: int, current: Kind | None = None, held_by: str | None = None
) -> Alarm | None:
    """Return the alarm for a slot, or None while the slot is well.

    Args:
        facts: the slot's state, as the server reports it.
        source: the source's name.
        slot: the slot's name.
        limit: bytes held back at which the alarm `large` begins.
        current: the kind of the current alarm, if there is one.
        held_by: the source of a shared slot that is the farthest behind. The facts say how far. None for a slot of one
            source.
    """
    kind = _kind(facts, limit, current)
    return (
        None
        if kind is None
        else Alarm(kind, _TEXTS[kind](facts, source if kind == "lost" else held_by or source, slot))
    )


def _kind(facts: CaptureFacts, limit: int, current: Kind | None) -> Kind | None:
    if facts.wal_status in ("lost", "unreserved"):
        return "lost" if facts.wal_status == "lost" else "unreserved"
    held_back, safe_wal_size = facts.held_back, facts.safe_wal_size
    if held_back is None:
        return None
    if safe_wal_size is not None and held_back >= (held_back + safe_wal_size) * TIGHT_SHARE * (
        CLEAR_FACTOR if current == "tight" else 1.0
    ):
        return "tight"
    return "large" if held_back >= limit * (CLEAR_FACTOR if current == "large" else 1.0) else None


def _lost(_: CaptureFacts, source: str, slot: str) -> str:
    return (
        f"The replication slot {slot} is lost, because the server has removed WAL that it needs. Changes are missing."
        f" Restart the capture, with a fresh backfill: headrace source postgres resume {source} --anew"
    )


def _unreserved(facts: CaptureFacts, source: str, slot: str) -> str:
    return (
        f"The replication slot {slot} {_held_back_text(facts)}, more than max_slot_wal_keep_size allows. The next checkpoint may remove it."
        f" Then the slot is lost and needs a fresh backfill. {_raise_limit_advice(facts)} {_cause(facts, source)}"
    )


def _tight(facts: CaptureFacts, source: str, slot: str) -> str:
    return (
        f"The replication slot {slot} {_held_back_text(facts)}, and {format_size(max(facts.safe_wal_size or 0, 0))} more reach"
        f" max_slot_wal_keep_size. Then the slot is lost and needs a fresh backfill. {_raise_limit_advice(facts)} {_cause(facts, source)}"
    )


def _large(facts: CaptureFacts, source: str, slot: str) -> str:
    if facts.safe_wal_size is None:
        outcome = "The limit max_slot_wal_keep_size is not set, so it can grow until the server's disk is full"
    else:
        outcome = (
            f"After {format_size(facts.safe_wal_size)} more, max_slot_wal_keep_size is reached and the slot is lost"
        )
    return f"The replication slot {slot} {_held_back_text(facts)}. {outcome}. {_cause(facts, source)}"


_TEXTS = {"lost": _lost, "unreserved": _unreserved, "tight": _tight, "large": _large}


def _held_back_text(facts: CaptureFacts) -> str:
    return "holds back WAL" if facts.held_back is None else f"holds back {format_size(facts.held_back)} of WAL"


def _raise_limit_advice(facts: CaptureFacts) -> str:
    """Return advice with the statement that doubles the limit."""
    megabytes = max(2 * ((facts.held_back or 0) + max(facts.safe_wal_size or 0, 0)) // 2**20, 1024)
    return (
        "If the disk has room, raise the limit:"
        f" alter system set max_slot_wal_keep_size = '{megabytes}MB'; select pg_reload_conf();"
    )


def _cause(facts: CaptureFacts, source: str) -> str:
    """Return a sentence on what holds the WAL back. It is the capture, if that accounts for at least
    half of it. Otherwise it is an old open transaction, which must be decoded from its first change
    on.
    """
    if facts.behind is None or facts.held_back is None or facts.behind * 2 >= facts.held_back:
        behind = "" if facts.behind is None else f" is {format_size(facts.behind)} behind. It"
        return f"The capture of {source}{behind} has to catch up. To see what it waits for, run: headrace source postgres info {source}"
    return (
        "The capture keeps up, so an old open transaction holds it back. Find it:"
        " select pid, xact_start, state, query from pg_stat_activity where backend_xid is not null order by xact_start limit 3;"
        " or, if it is prepared: select gid, prepared from pg_prepared_xacts;"
    )
