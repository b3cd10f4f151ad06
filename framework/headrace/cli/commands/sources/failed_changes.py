"""`headrace source postgres failures ls|retry|drop`: changes that could not be made into messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.commands.sources.facts import SourceRef
from headrace.cli.options.backend import Backend
from headrace.cli.options.common import JsonOption, LimitOption, YesOption, print_json
from headrace.cli.options.connection import administer
from headrace.cli.options.times import in_utc
from headrace.cli.output.notices import NOT_DONE, confirmed, count, say
from headrace.cli.output.tables import compact, number, print_table

if TYPE_CHECKING:
    from headrace.client import Administration

IdsOption = Annotated[
    list[int] | None,
    Parameter(
        name="--id", negative="", show_default=False, validator=Number(gte=1, lt=2**63),
        help="Only this one; may be given several times.",
    ),
]  # fmt: skip


def ls(
    source: SourceRef,
    /,
    *,
    above: Annotated[int, Parameter(validator=Number(gte=0), help="Only those above this id: the next page.")] = 0,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List changes that could not be made into messages, mostly because the transform failed."""
    found = administer(backend, lambda admin: admin.failures(source, above=above, limit=limit))
    if json:
        print_json(found)
    elif not found:
        say("No change has failed.")
    else:
        print_table(
            ("id#", "key", "failed", "times#", "again", "error", "change…"),
            ((str(one.id), one.key or "–", in_utc(one.failed_at), number(one.attempts), "soon" if one.retry else "", one.error,
              compact(one.data)) for one in found),
        )  # fmt: skip
    if len(found) == limit:
        say(f"There may be more: --above {found[-1].id} goes on.")


def retry(
    source: SourceRef,
    /,
    *,
    id: IdsOption = None,  # noqa: A002 - the record's word
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Try failed changes again, and publish those that succeed.

    The process that captures does this. The exit code is 1 if there was none to
    try.
    """
    found = administer(backend, lambda admin: admin.retry_failures(source, id))
    if json:
        print_json({"retried": found})
    else:
        print(f"{count(found, 'change')} will be tried again.")
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
    """Delete failed changes. They will not be in any stream.

    The exit code is 1 if there was none, or if the answer was no.
    """
    found = administer(backend, _drop, source, id, backend.asked(yes))
    if found is None:
        return NOT_DONE
    if json:
        print_json({"dropped": found})
    else:
        print(f"Dropped {count(found, 'change')}.")
    return 0 if found else NOT_DONE


async def _drop(admin: Administration, source: str, ids: list[int] | None, yes: bool) -> int | None:
    if not yes:
        there = await admin.source(source)
        which = "all failed changes" if ids is None else count(len(ids), "failed change")
        if not await confirmed(f"Forget {which} of the source {there.name!r}, which are in no stream?"):
            return None
    return await admin.drop_failures(source, ids)
