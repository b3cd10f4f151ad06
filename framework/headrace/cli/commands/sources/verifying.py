"""`headrace source postgres verify`: compare captured tables with their stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter

from headrace.cli.commands.sources.backfills import as_json
from headrace.cli.commands.sources.facts import SourceRef, backfill_progress, differences_found, print_queued
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.capture import RateOption, TablesOption, rows_a_second
from headrace.cli.options.common import JsonOption, flag
from headrace.cli.output.json_output import print_json
from headrace.cli.output.progress import Step, step_bar
from headrace.model.capture import BackfillInfo
from headrace.model.text.printing import printable

if TYPE_CHECKING:
    from headrace.client import Administration

POLL_INTERVAL = 0.5
"""Seconds between two looks at the progress."""


def verify(
    source: SourceRef,
    /,
    *,
    table: TablesOption = None,
    repair: Annotated[
        bool, flag("Correct the stream: publish what differs or is missing, and tombstones of rows that are gone.")
    ] = False,
    rate: RateOption = None,
    wait: Annotated[
        bool, Parameter(negative="--no-wait", show_default=False, help="Wait for the result. This is the default.")
    ] = True,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Compare the rows of a source's tables with its stream.

    It reports rows that differ or are missing, and messages whose rows are
    gone. Changes are captured meanwhile. Ctrl-C ends the command, and the
    verification continues. The exit code is 1 if there are differences that were
    not repaired, or if a table could not be verified.
    """
    rows_per_second = None if rate is None else rows_a_second(rate)
    verifications = administer(backend, _verify, source, table, repair, rows_per_second, wait)
    if json:
        print_json([as_json(one) for one in verifications])
    elif wait:
        for one in verifications:
            print(printable(_result(one)))
    else:
        print_queued(source, verifications)
    return NOT_DONE if wait and not all(map(_is_equal, verifications)) else 0


async def _verify(
    admin: Administration, source: str, tables: list[str] | None, repair: bool, rate: int | None, wait: bool
) -> list[BackfillInfo]:
    started = await admin.verify_source(source, tables, repair=repair, rate=rate)
    if not wait:
        return started
    with step_bar() as bar:
        while True:
            backfills = {one.id: one for one in await admin.backfills(source, limit=max(100, 4 * len(started)))}
            now = [backfills.get(one.id, one) for one in started]
            waiting = [one for one in now if one.state in ("queued", "running")]
            if not waiting:
                return now
            first = next((one for one in waiting if one.state == "running"), waiting[0])
            bar(Step(first.table, first.share or 0, backfill_progress(first) or "waits for a process that captures"))
            await anyio.sleep(POLL_INTERVAL)


def _is_equal(one: BackfillInfo) -> bool:
    return one.state == "done" and (one.kind == "repair" or one.differences is None or not one.differences.count)


def _result(one: BackfillInfo) -> str:
    """Return what was found, and the first examples."""
    if one.state != "done":
        return f"{one.table}: {one.state}. {one.reason or ''}".rstrip()
    lines = [f"{one.table}: {differences_found(one)}"]
    if one.differences is not None:
        lines += [f"  {example.kind}: {example.key}" for example in one.differences.examples]
    return "\n".join(lines)
