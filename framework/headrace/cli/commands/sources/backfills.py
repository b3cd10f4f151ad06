"""`headrace source backfill start|ls|cancel`: backfills, which publish the rows that a captured table has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from headrace.cli.commands.sources.facts import (
    SourceRef,
    backfill_progress,
    differences_found,
    print_queued,
    unfinished_backfills,
)
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.capture import RateOption, TablesOption, rows_a_second
from headrace.cli.options.common import JsonOption, LimitOption, YesOption
from headrace.cli.output.formats import number_or_dash
from headrace.cli.output.json_output import print_json
from headrace.cli.output.results import print_cut, print_result
from headrace.cli.output.stderr import confirm, print_notice
from headrace.cli.output.tables import print_table
from headrace.model.capture import BackfillInfo
from headrace.model.text.counting import count

if TYPE_CHECKING:
    from headrace.client import Administration


def start(
    source: SourceRef,
    /,
    *,
    table: TablesOption = None,
    where: Annotated[
        str | None,
        Parameter(show_default=False, help="Only rows that meet this condition, such as 'data.record.total > 100'."),
    ] = None,
    rate: RateOption = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Publish all rows of a source's tables, while their changes are captured.

    Each row becomes a message, unless a newer change of the row was captured
    meanwhile. Without --table, it reads all tables that have no running
    backfill.
    """
    rows_per_second = None if rate is None else rows_a_second(rate)
    started = administer(backend, lambda admin: admin.start_backfill(source, table, where, rows_per_second))
    if json:
        print_json([as_json(one) for one in started])
        return
    print_queued(source, started)


def ls(
    source: Annotated[
        str | None, Parameter(name="NAME", show_default=False, help="The name or id of a source. Default: all sources.")
    ] = None,
    /,
    *,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List backfills and verifications, the newest first, and their progress."""
    backfills = administer(backend, lambda admin: admin.backfills(source, limit=limit))
    if json:
        print_json([as_json(one) for one in backfills])
    elif not backfills:
        print_notice("There are no backfills. Start one with `headrace source backfill start`.")
    else:
        print_table(
            ("source", "table", "kind", "state", "rows#", "of about#", "published#", "progress", "id", "result…"),
            ((one.source, one.table, one.kind, one.state, number_or_dash(one.read), number_or_dash(one.total), number_or_dash(one.published),
              backfill_progress(one), one.id, one.reason or differences_found(one)) for one in backfills),
        )  # fmt: skip
    print_cut(backfills, limit)


def cancel(
    source: SourceRef,
    id: Annotated[  # noqa: A002 - the record's word
        str | None,
        Parameter(
            name="ID", show_default=False, help="The id of a backfill, as shown by `ls`. Default: all of the source."
        ),
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
    cancelled = administer(backend, _cancel, source, id, backend.skips_confirmation(yes))
    if cancelled is None:
        return NOT_DONE
    print_result({"cancelled": cancelled}, json, f"Cancelled: {count(cancelled, 'backfill')}.")
    return 0 if cancelled else NOT_DONE


async def _cancel(admin: Administration, source: str, id: str | None, yes: bool) -> int | None:  # noqa: A002
    if not yes:
        backfills = await unfinished_backfills(admin, source)
        if id is not None:
            backfills = [one for one in backfills if one.id == id]
        if backfills and not await confirm(
            f"Cancel {count(len(backfills), 'backfill')} ({', '.join(one.table for one in backfills)})?"
        ):
            return None
    return await admin.cancel_backfills(source, id)


def as_json(backfill: BackfillInfo) -> dict[str, object]:
    """Return a backfill with its progress."""
    return {**msgspec.structs.asdict(backfill), "done": backfill.share, "time_left": backfill.seconds_left}
