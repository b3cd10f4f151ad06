"""`headrace source postgres failures ls|retry|drop`: row changes that could not become messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.commands.sources.facts import SourceRef
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import JsonOption, LimitOption, YesOption, above
from headrace.cli.options.times import in_utc
from headrace.cli.output.formats import count, number_or_dash, one_line_json
from headrace.cli.output.results import print_list, print_next_page, print_result
from headrace.cli.output.stderr import confirm

if TYPE_CHECKING:
    from headrace.client import Administration

IdsOption = Annotated[
    list[int] | None,
    Parameter(
        name="--id", negative="", show_default=False, validator=Number(gte=1, lt=2**63),
        help="Only the failed change with this id. Repeat for several.",
    ),
]  # fmt: skip


def ls(
    source: SourceRef,
    /,
    *,
    above: Annotated[int, above("failed changes", "id")] = 0,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List row changes that could not become messages, mostly because the transform failed."""
    found = administer(backend, lambda admin: admin.failures(source, above=above, limit=limit))
    print_list(
        found, json, ("id#", "key", "failed", "attempts#", "retry", "error", "change…"),
        lambda one: (str(one.id), one.key or "–", in_utc(one.failed_at), number_or_dash(one.attempts), "queued" if one.retry else "",
                     one.error, one_line_json(one.data)),
        empty="There are no failed changes.",
    )  # fmt: skip
    print_next_page(found, limit, lambda one: one.id)


def retry(
    source: SourceRef,
    /,
    *,
    id: IdsOption = None,  # noqa: A002 - the record's word
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Try failed changes again, and publish those that succeed.

    The process that captures the source does this. The exit code is 1 if there
    were none.
    """
    found = administer(backend, lambda admin: admin.retry_failures(source, id))
    print_result({"retried": found}, json, f"To be retried: {count(found, 'change')}.")
    return 0 if found else NOT_DONE


def drop(
    source: SourceRef,
    /,
    *,
    id: IdsOption = None,  # noqa: A002
    yes: YesOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Delete failed changes. They are not published to any stream.

    The exit code is 1 if there were none, or if the answer was no.
    """
    found = administer(backend, _drop, source, id, backend.skips_confirmation(yes))
    if found is None:
        return NOT_DONE
    print_result({"dropped": found}, json, f"Dropped: {count(found, 'change')}.")
    return 0 if found else NOT_DONE


async def _drop(admin: Administration, source: str, ids: list[int] | None, yes: bool) -> int | None:
    if not yes:
        info = await admin.source(source)
        which = "all failed changes" if ids is None else count(len(ids), "failed change")
        if not await confirm(f"Delete {which} of the source {info.name!r}? They are not in any stream."):
            return None
    return await admin.drop_failures(source, ids)
