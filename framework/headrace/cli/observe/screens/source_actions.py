"""The actions on a source, each after a confirmation: pause, resume, cancel backfills, retry failed changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.observe.live_app import LiveApp
from headrace.cli.observe.screens.dialogs import Confirm
from headrace.model.text.counting import count
from headrace.model.watching.live import SourceRow

if TYPE_CHECKING:
    from headrace.model.capture import BackfillInfo


async def _confirm(observer: LiveApp, title: str, text: str, yes: str) -> bool:
    return await observer.push_screen_wait(Confirm(title, text, yes))


async def pause_or_resume(observer: LiveApp, row: SourceRow) -> bool:
    """Pause the source, or resume it if it is paused, after a confirmation. Returns whether anything was changed."""
    name, capture = row.name, row.info.capture
    if capture is None:
        observer.notify(f"{name} is a webhook source. Only sources that capture tables can be paused.")
        return False
    if row.state == "paused":
        text = f"This resumes capturing {name} from where it was paused. No change is lost."
        if not await _confirm(observer, "Resume", text, "Resume"):
            return False
        return await observer.apply_change(observer.admin.resume_source(name), f"{name} is resumed.")
    text = (
        f"This stops capturing {name} until you resume it. The captured server keeps all WAL that is not captured yet, so its disk"
        " can fill. With max_slot_wal_keep_size the replication slot can be lost."
    )
    if row.backfills:
        text += f" Its backfills ({len(row.backfills):,}) wait, too."
    if not await _confirm(observer, "Pause", text, "Pause"):
        return False
    return await observer.apply_change(observer.admin.pause_source(name), f"{name} is paused.")


async def cancel_backfills(observer: LiveApp, row: SourceRow, backfill: BackfillInfo | None = None) -> bool:
    """Cancel one backfill or all of the source, after a confirmation. Returns whether anything was changed."""
    name = row.name
    if backfill is not None and backfill.state not in ("queued", "running"):
        observer.notify(f"The backfill of {backfill.table} is already {backfill.state}.")
        return False
    backfills = row.backfills if backfill is None else [backfill]
    if not backfills:
        observer.notify(f"{name} has no queued or running backfill.")
        return False
    tables = ", ".join(f"{one.table} ({one.read:,} rows read)" for one in backfills)
    text = (
        f"This stops reading rows of {tables}. Messages that were published stay in the stream, and changes are still captured."
        " A new backfill starts at the first row again."
    )
    if not await _confirm(observer, "Cancel backfill", text, "Cancel backfill"):
        return False
    call = observer.admin.cancel_backfills(name, None if backfill is None else backfill.id)
    return await observer.apply_change(call, _cancel_result)


async def retry_failures(observer: LiveApp, row: SourceRow, ids: Sequence[int] | None) -> bool:
    """Retry all or the given failed changes, after a confirmation. Returns whether anything was changed."""
    name, capture = row.name, row.info.capture
    if capture is None or not capture.failures:
        observer.notify(f"{name} has no failed changes.")
        return False
    changes = f"all {count(capture.failures, 'failed change')}" if ids is None else f"the failed change {ids[0]}"
    text = (
        f"The process that captures {name} tries {changes} again. A change that succeeds is published now, after newer changes of"
        " its key."
    )
    if not await _confirm(observer, "Retry", text, "Retry"):
        return False
    call = observer.admin.retry_failures(name, ids)
    return await observer.apply_change(call, lambda retried: f"To be retried: {count(retried, 'change')}.")


def _cancel_result(cancelled: int) -> str:
    return f"Cancelled: {count(cancelled, 'backfill')}." if cancelled else "The backfill had already ended."
