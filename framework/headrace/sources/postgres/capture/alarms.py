"""Decides when a replication slot is in trouble, and words the alarm. Plain code without I/O.

A slot makes its server keep all WAL from the slot's restart_lsn on. Without a limit that fills the
server's disk. With a limit, which is max_slot_wal_keep_size, the server drops the WAL instead, and
the slot is lost. So an alarm depends on both how much WAL is held back and how much more may be.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.model.capture import CaptureFacts

Kind = Literal["lost", "unreserved", "tight", "large"]

USED = 0.8
"""The share of max_slot_wal_keep_size at which the alarm `tight` begins."""

CALM = 0.8
"""An alarm ends below this share of the threshold at which it begins. So a value that fluctuates
around the threshold gives one alarm, not many.
"""


class Alarm(msgspec.Struct, frozen=True):
    """What is wrong with a slot. `text` says what is wrong, what will happen, and what to do."""

    kind: Kind
    text: str


def alarm_of(facts: CaptureFacts, *, source: str, slot: str, limit: int, begun: Kind | None = None) -> Alarm | None:
    """Return the alarm for a slot, or None while the slot is well.

    Args:
        facts: the slot's state, as the server reports it.
        source: the source's name.
        slot: the slot's name.
        limit: bytes held back at which the alarm `large` begins.
        begun: the kind of the current alarm, if there is one.
    """
    kind = _kind(facts, limit, begun)
    return None if kind is None else Alarm(kind, _TEXTS[kind](facts, source, slot))


def size(count: int) -> str:
    """Return a number of bytes for people, such as `512 bytes` or `1.2 GB`."""
    amount, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}"


def _kind(facts: CaptureFacts, limit: int, begun: Kind | None) -> Kind | None:
    if facts.wal_status in ("lost", "unreserved"):
        return "lost" if facts.wal_status == "lost" else "unreserved"
    held, safe = facts.held_back, facts.safe_wal_size
    if held is None:
        return None
    if safe is not None and held >= (held + safe) * USED * (CALM if begun == "tight" else 1.0):
        return "tight"
    return "large" if held >= limit * (CALM if begun == "large" else 1.0) else None


def _lost(_: CaptureFacts, source: str, slot: str) -> str:
    return (
        f"The replication slot {slot} is lost: the server has removed WAL that it needs, so changes are missing."
        f" Begin anew, with a fresh backfill: headrace source postgres resume {source} --anew"
    )


def _unreserved(facts: CaptureFacts, source: str, slot: str) -> str:
    return (
        f"The replication slot {slot} {_holds(facts)}, more than max_slot_wal_keep_size allows: the next checkpoint may remove it, and"
        f" then the slot is lost and only a fresh backfill helps. {_raised(facts)} {_cause(facts, source)}"
    )


def _tight(facts: CaptureFacts, source: str, slot: str) -> str:
    return (
        f"The replication slot {slot} {_holds(facts)}, and {size(max(facts.safe_wal_size or 0, 0))} more reach max_slot_wal_keep_size: then"
        f" it is lost and only a fresh backfill helps. {_raised(facts)} {_cause(facts, source)}"
    )


def _large(facts: CaptureFacts, source: str, slot: str) -> str:
    if facts.safe_wal_size is None:
        next_ = "max_slot_wal_keep_size is not set, so it can grow until the server's disk is full"
    else:
        next_ = f"after {size(facts.safe_wal_size)} more it is lost, since max_slot_wal_keep_size is reached"
    return f"The replication slot {slot} {_holds(facts)}; {next_}. {_cause(facts, source)}"


_TEXTS = {"lost": _lost, "unreserved": _unreserved, "tight": _tight, "large": _large}


def _holds(facts: CaptureFacts) -> str:
    return "holds back WAL" if facts.held_back is None else f"holds back {size(facts.held_back)} of WAL"


def _raised(facts: CaptureFacts) -> str:
    """Return advice with the statement that doubles the limit."""
    megabytes = max(2 * ((facts.held_back or 0) + max(facts.safe_wal_size or 0, 0)) // 2**20, 1024)
    return (
        "If the disk has room, raise it:"
        f" alter system set max_slot_wal_keep_size = '{megabytes}MB'; select pg_reload_conf();"
    )


def _cause(facts: CaptureFacts, source: str) -> str:
    """Return a sentence on what holds the WAL back. It is the capture, if that accounts for at least
    half of it. Otherwise it is an old open transaction, which must be decoded from its first change
    on.
    """
    if facts.behind is None or facts.held_back is None or facts.behind * 2 >= facts.held_back:
        behind = "" if facts.behind is None else f" is {size(facts.behind)} behind, and"
        return f"The capture{behind} has to catch up: see headrace source postgres info {source} for what it waits for."
    return (
        "The capture keeps up, so a transaction that has long been open holds it back:"
        " select pid, xact_start, state, query from pg_stat_activity where backend_xid is not null order by xact_start limit 3;"
        " or one that was prepared: select gid, prepared from pg_prepared_xacts;"
    )
