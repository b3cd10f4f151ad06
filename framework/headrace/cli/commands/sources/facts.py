"""The output of commands about a source: its settings, and the state of its capture and its backfills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headrace.cli.options.times import ago, lasting, roughly
from headrace.cli.output.formats import number_or_dash
from headrace.cli.output.stderr import print_notice
from headrace.flow.observed import source_reason, source_state
from headrace.model.capture import BackfillInfo, CaptureFacts, CaptureInfo
from headrace.model.sources import SourceInfo
from headrace.model.text.counting import count
from headrace.model.text.printing import printable
from headrace.model.text.sizes import format_size
from headrace.sources.webhook import WebhookSpec

if TYPE_CHECKING:
    from headrace.client import Administration

SourceRef = Annotated[str, Parameter(name="NAME", help="The source's name or id.")]


def setting_facts(source: SourceInfo) -> list[tuple[str, str]]:
    """Return the source's settings, without its secrets."""
    return _capture_settings(source) if source.kind == "postgres" else _webhook_settings(source)


def summary(source: SourceInfo) -> tuple[str, str]:
    """Return the source's state, and a short description."""
    if source.kind != "postgres":
        settings = WebhookSpec.shown(source.settings)
        return "–", f"{settings['signature'] or 'unsigned'}, key {settings['key']}"
    capture, about = source.capture, f"{source.settings['mode']} of {', '.join(source.settings['tables'])}"
    if capture is None:
        return "–", about
    state, (reason, _) = source_state(capture), source_reason(source.name, capture)
    if state == "alarm":
        return "running!", reason or about
    return state, (reason or about) if state in ("stopped", "waiting", "degraded") else about


def _webhook_settings(source: SourceInfo) -> list[tuple[str, str]]:
    settings = WebhookSpec.shown(source.settings)
    secrets = count(len(settings["secrets"]), "secret")
    return [
        ("address", f"/api/webhook/{source.name}"),
        ("key", settings["key"]),
        ("signature", f"{settings['signature']}, with {secrets}" if settings["signature"] else "not checked"),
        ("kept headers", ", ".join(("content-type", "content-encoding", *settings["keep_headers"]))),
        ("maximum body", _largest_body(settings)),
    ]


def _largest_body(settings: Mapping[str, Any]) -> str:
    if settings["max_body"] is not None:
        return format_size(settings["max_body"])
    return "the server's limit" if settings["signature"] else "1 MB, since signatures are not checked"


def _capture_settings(source: SourceInfo) -> list[tuple[str, str]]:
    from headrace.sources.postgres.settings import ACTIONS
    from headrace.sources.postgres.spec import PostgresSpec  # it imports the store

    settings = PostgresSpec.shown(source.settings)
    rows = [
        ("tables", "\n".join(_table(table, settings["columns"].get(table)) for table in settings["tables"])),
        ("mode", settings["mode"]),
        ("database", settings["database"] or "the database of Headrace"),
        ("key", settings["key"] or f"{{schema}}.{{table}}. and {', '.join(settings['group'] or ['the primary key'])}"),
        ("actions", "" if list(settings["actions"]) == list(ACTIONS) else ", ".join(settings["actions"])),
        ("where", settings["where"] or ""),
        ("sort", settings["sort"] or ""),
        ("deletes", settings["deletes"] if settings["mode"] == "rows" else ""),
        ("numeric", f"as {settings['numeric']}"),
        ("transform", settings["transform"] or ""),
        ("backfill", _backfill(settings["backfill"], settings["rate"])),
        ("verified", "" if settings["verify_every"] is None else f"every {lasting(settings['verify_every'])}"),
        ("slot", settings["slot"] or ""),
        ("shared slot", _shared_slot(source, settings["shared_slot"])),
        ("publication", settings["publication"] or ""),
        ("heartbeat", "" if settings["heartbeat"] is None else f"every {lasting(settings['heartbeat'])}"),
        ("alarm", f"at {format_size(settings['alarm'])} of WAL"),
    ]
    return [(name, value) for name, value in rows if value]


def _shared_slot(source: SourceInfo, name: str | None) -> str:
    from headrace.sources.postgres.database.slots import slot_name

    slot_id = source.capture and source.capture.shared_slot_id
    return name or "" if name is None or not slot_id else f"{name}, on the server {slot_name(name, slot_id)}"


def _table(name: str, columns: list[str] | None) -> str:
    return name if columns is None else f"{name} ({', '.join(columns)})"


def _backfill(enabled: bool, rate: int | None) -> str:
    limit = "" if rate is None else f"at most {rate:,} rows/s"
    return limit or "yes" if enabled else ", ".join(part for part in ("not automatically", limit) if part)


def capture_facts(capture: CaptureInfo) -> list[tuple[str, str]]:
    """Return the state and progress of a capture."""
    since = f", since {ago(capture.since)}".replace(" ago", "") if capture.since else ""
    rows = [
        ("state", f"{capture.state}{since}"),
        ("reason", capture.reason if capture.state not in ("running", "paused") else None),
        ("to fix it", capture.mend if capture.state not in ("running", "paused") else None),
        ("position", capture.position),
        ("captured", f"{number_or_dash(capture.captured)} changes"),
        *_facts(capture.facts),
        ("failures", f"{count(capture.failures, 'change')}, see `failures ls`" if capture.failures else None),
    ]
    return [(name, value) for name, value in rows if value]


def _facts(found: CaptureFacts | None) -> list[tuple[str, str | None]]:
    if found is None:
        return []
    return [
        ("rate", f"{found.rate:,.0f} changes/s"),
        ("behind", None if found.behind is None else f"{format_size(found.behind)} of WAL"),
        (
            "WAL held back",
            None if found.held_back is None else f"{format_size(found.held_back)}, slot {found.wal_status}",
        ),
        (
            "before it is lost",
            None if found.safe_wal_size is None else f"{format_size(max(found.safe_wal_size, 0))} more of WAL",
        ),
        ("newest change", None if found.committed_at is None else ago(found.committed_at)),
        ("ALARM", found.alarm),
    ]


def backfill_progress(backfill: BackfillInfo) -> str:
    """Format the progress of a backfill: `42 %, 3m left`."""
    if backfill.state != "running":
        return "100 %" if backfill.state == "done" else ""
    share, left = backfill.share, backfill.seconds_left
    parts = [
        "" if share is None else f"{share:.0%}".replace("%", " %"),
        "" if left is None else f"{roughly(left)} left",
    ]
    return ", ".join(part for part in parts if part)


def differences_found(one: BackfillInfo) -> str:
    """Format the result of a verification: `2 differ, 1 is missing`. Empty for a backfill."""
    differences = one.differences
    if differences is None:
        return ""
    kinds = ((differences.differs, "differ"), (differences.missing, "missing"), (differences.extra, "extra"))
    parts = [f"{number:,} {word}" for number, word in kinds if number]
    if parts and one.kind == "repair":
        parts.append("repaired")
    others = [
        f"{number:,} {word}"
        for number, word in ((differences.kept, "kept"), (differences.unchecked, "not checked"))
        if number
    ]
    return ", ".join((parts or ["equal"]) + others)


async def unfinished_backfills(admin: Administration, source: str) -> list[BackfillInfo]:
    """Return the queued and running backfills of a source, the newest first."""
    return [
        backfill
        async for page in admin.backfills.pages(source, limit=None)
        for backfill in page
        if backfill.state in ("queued", "running")
    ]


def print_queued(source: str, queued: Iterable[BackfillInfo]) -> None:
    """Print backfills or verifications that were queued, and how to follow them."""
    for one in queued:
        print(printable(f"Queued a {one.kind} of {one.table}: {one.id}"))
    print_notice(f"See the progress with `headrace source backfill ls {source}`.")
