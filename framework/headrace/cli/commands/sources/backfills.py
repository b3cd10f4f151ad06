"""`headrace source backfill start|ls|cancel`: backfills, which read the rows that a captured table has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from headrace.cli.commands.sources.facts import SourceRef, progress
from headrace.cli.options.backend import Backend
from headrace.cli.options.capture import rows_a_second
from headrace.cli.options.common import JsonOption, YesOption, print_json
from headrace.cli.options.connection import administer
from headrace.cli.output.notices import NOT_DONE, confirmed, count, say
from headrace.cli.output.tables import number, print_table
from headrace.model.capture import BackfillInfo

if TYPE_CHECKING:
    from headrace.client import Administration


def start(
    source: SourceRef,
    /,
    *,
    table: Annotated[
        list[str] | None,
        Parameter(negative="", show_default=False, help="Only this table of the source; may be given several times."),
    ] = None,
    where: Annotated[
        str | None,
        Parameter(show_default=False, help="Only rows that meet this, such as 'data.record.total > 100'."),
    ] = None,
    rate: Annotated[
        str | None, Parameter(show_default=False, help="Rows a second, at most; by default as the source has it.")
    ] = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Read all rows of a source's tables, while their changes are captured.

    Each row becomes a message, unless a newer change of it was captured
    meanwhile. Without --table, it reads all tables that are not being read
    already.
    """
    pace = None if rate is None else rows_a_second(rate)
    begun = administer(backend, lambda admin: admin.start_backfill(source, table, where, pace))
    if json:
        print_json([_told(one) for one in begun])
        return
    for one in begun:
        print(f"A backfill of {one.table} is queued: {one.id}")
    say(f"`headrace source backfill ls {source}` tells how far it is.")


def ls(
    source: Annotated[
        str | None, Parameter(name="NAME", show_default=False, help="A source's name or id; without it, of all.")
    ] = None,
    /,
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List backfills, the newest first, and their progress."""
    found = administer(backend, lambda admin: admin.backfills(source))
    if json:
        print_json([_told(one) for one in found])
    elif not found:
        say("There was no backfill yet: `headrace source backfill start` makes one.")
    else:
        print_table(
            ("source", "table", "state", "rows#", "of about#", "published#", "progress", "id", "why…"),
            ((one.source, one.table, one.state, number(one.read), number(one.total), number(one.published),
              progress(one), one.id, one.reason or "") for one in found),
        )  # fmt: skip


def cancel(
    source: SourceRef,
    id: Annotated[  # noqa: A002 - the record's word
        str | None, Parameter(name="ID", show_default=False, help="The id of one, as `ls` tells it; without it, all.")
    ] = None,
    /,
    *,
    yes: YesOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Cancel a backfill, or all backfills of a source.

    Messages that were published stay in the stream. The backfill's position is
    lost. The exit code is 1 if there was none, or if the answer was no.
    """
    cancelled = administer(backend, _cancel, source, id, backend.asked(yes))
    if cancelled is None:
        return NOT_DONE
    if json:
        print_json({"cancelled": cancelled})
    else:
        print(f"Cancelled {count(cancelled, 'backfill')}.")
    return 0 if cancelled else NOT_DONE


async def _cancel(admin: Administration, source: str, id: str | None, yes: bool) -> int | None:  # noqa: A002
    if not yes:
        found = [one for one in await admin.backfills(source) if one.state in ("queued", "running")]
        if id is not None:
            found = [one for one in found if one.id == id]
        if found and not await confirmed(
            f"Cancel {count(len(found), 'backfill')}, of {', '.join(one.table for one in found)}?"
        ):
            return None
    return await admin.cancel_backfills(source, id)


def _told(backfill: BackfillInfo) -> dict[str, object]:
    return {**msgspec.structs.asdict(backfill), "done": backfill.share, "time_left": backfill.seconds_left}
