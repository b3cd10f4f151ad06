"""The facts that commands print about a source, of any kind."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headrace.cli.options.times import ago, lasting
from headrace.cli.output.notices import count
from headrace.cli.output.tables import number, size
from headrace.model.capture import BackfillInfo, CaptureFacts, CaptureInfo
from headrace.model.sources import SourceInfo
from headrace.sources.webhook import WebhookSpec

SourceRef = Annotated[str, Parameter(name="NAME", help="The source's name or id.")]


def facts(source: SourceInfo) -> list[tuple[str, str]]:
    """The source's settings, without its secrets."""
    return _captured(source) if source.kind == "postgres" else _delivered(source)


def gist(source: SourceInfo) -> tuple[str, str]:
    """The source's state, and a short description."""
    if source.kind != "postgres":
        settings = WebhookSpec.shown(source.settings)
        return "–", f"{settings['signature'] or 'unsigned'}, key {settings['key']}"
    capture, about = source.capture, f"{source.settings['mode']} of {', '.join(source.settings['tables'])}"
    if capture is None:
        return "–", about
    if capture.state in ("stopped", "waiting"):
        return capture.state, capture.reason or about
    alarm = None if capture.facts is None else capture.facts.alarm
    return (capture.state, about) if alarm is None else (f"{capture.state}!", alarm)


def _delivered(source: SourceInfo) -> list[tuple[str, str]]:
    settings = WebhookSpec.shown(source.settings)
    secrets = count(len(settings["secrets"]), "secret")
    return [
        ("address", f"/api/webhook/{source.name}"),
        ("key", settings["key"]),
        ("signature", f"{settings['signature']}, with {secrets}" if settings["signature"] else "none is asked for"),
        ("kept headers", ", ".join(("content-type", "content-encoding", *settings["keep_headers"]))),
        ("largest body", "as the server has it" if settings["max_body"] is None else size(settings["max_body"])),
    ]


def _captured(source: SourceInfo) -> list[tuple[str, str]]:
    from headrace.sources.postgres.settings import ACTIONS
    from headrace.sources.postgres.spec import PostgresSpec  # it imports the store

    settings = PostgresSpec.shown(source.settings)
    told = [
        ("tables", "\n".join(_table(table, settings["columns"].get(table)) for table in settings["tables"])),
        ("as", settings["mode"]),
        ("database", settings["database"] or "the one that Headrace is in"),
        ("key", settings["key"] or f"{{schema}}.{{table}}. and {', '.join(settings['group'] or ['the primary key'])}"),
        ("actions", "" if list(settings["actions"]) == list(ACTIONS) else ", ".join(settings["actions"])),
        ("where", settings["where"] or ""),
        ("sort", settings["sort"] or ""),
        ("deletes", settings["deletes"] if settings["mode"] == "rows" else ""),
        ("numeric", f"as a {settings['numeric']}"),
        ("transform", settings["transform"] or ""),
        ("backfill", _backfill(settings["backfill"], settings["rate"])),
        ("slot", settings["slot"] or ""),
        ("publication", settings["publication"] or ""),
        ("heartbeat", "" if settings["heartbeat"] is None else f"every {lasting(settings['heartbeat'])}"),
        ("alarm", f"at {size(settings['alarm'])} of WAL"),
    ]
    return [(name, value) for name, value in told if value]


def _table(name: str, columns: list[str] | None) -> str:
    return name if columns is None else f"{name} ({', '.join(columns)})"


def _backfill(wanted: bool, rate: int | None) -> str:
    at_most = "" if rate is None else f"at most {rate:,} rows/s"
    return at_most or "yes" if wanted else ", ".join(part for part in ("not by itself", at_most) if part)


def how(capture: CaptureInfo) -> list[tuple[str, str]]:
    """The state and progress of a capture."""
    since = f", since {ago(capture.since)}".replace(" ago", "") if capture.since else ""
    told = [
        ("state", f"{capture.state}{since}"),
        ("reason", capture.reason if capture.state not in ("running", "paused") else None),
        ("mend it with", capture.mend if capture.state not in ("running", "paused") else None),
        ("position", capture.position),
        ("captured", f"{number(capture.captured)} changes"),
        *_facts(capture.facts),
        ("failures", f"{count(capture.failures, 'change')}, see `failures ls`" if capture.failures else None),
    ]
    return [(name, value) for name, value in told if value]


def _facts(found: CaptureFacts | None) -> list[tuple[str, str | None]]:
    if found is None:
        return []
    return [
        ("rate", f"{found.rate:,.0f} changes/s"),
        ("behind", None if found.behind is None else f"{size(found.behind)} of WAL"),
        ("WAL held back", None if found.held_back is None else f"{size(found.held_back)}, slot {found.wal_status}"),
        ("before it is lost", None if found.safe_wal_size is None else f"{size(max(found.safe_wal_size, 0))} of WAL"),
        ("newest change", None if found.committed_at is None else ago(found.committed_at)),
        ("ALARM", found.alarm),
    ]


def progress(backfill: BackfillInfo) -> str:
    """Format the progress of a backfill for people: `42 %, 3m left`."""
    if backfill.state != "running":
        return "100 %" if backfill.state == "done" else ""
    share, left = backfill.share, backfill.seconds_left
    parts = [
        "" if share is None else f"{share:.0%}".replace("%", " %"),
        "" if left is None else f"{_roughly(left)} left",
    ]
    return ", ".join(part for part in parts if part)


def _roughly(length: float) -> str:
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if length >= 2 * factor:
            return f"{length / factor:.0f}{unit}"
    return f"{length:.0f}s"
