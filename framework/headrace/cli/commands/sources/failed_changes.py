"""`headrace source postgres failures ls`: row changes that could not become messages."""

from __future__ import annotations

from typing import Annotated

from headrace.cli.commands.sources.facts import SourceRef
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.options.common import JsonOption, LimitOption, above
from headrace.cli.options.times import in_utc
from headrace.cli.output.formats import number_or_dash, one_line_json
from headrace.cli.output.results import print_list, print_next_page


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
    failures = administer(backend, lambda admin: admin.failures(source, above=above, limit=limit))
    print_list(
        failures, json, ("id#", "key", "failed", "attempts#", "retry", "error", "change…"),
        lambda one: (str(one.id), one.key or "–", in_utc(one.failed_at), number_or_dash(one.attempts), "queued" if one.retry else "",
                     one.error, one_line_json(one.data)),
        empty="There are no failed changes.",
    )  # fmt: skip
    print_next_page(failures, limit, lambda one: one.id)
