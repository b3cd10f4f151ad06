"""`headrace source webhook deliveries`: the last deliveries to a webhook."""

from __future__ import annotations

from headrace.cli.commands.sources.facts import SourceRef
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.options.common import JsonOption, LimitOption
from headrace.cli.options.times import in_utc
from headrace.cli.output.formats import number_or_dash
from headrace.cli.output.results import print_list


def deliveries(
    source: SourceRef,
    /,
    *,
    limit: LimitOption = 50,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List the last deliveries to a webhook, accepted and refused, the newest first.

    100 of them are kept, and the last 20 of each second.
    """
    recent = administer(backend, lambda admin: admin.deliveries(source, limit=limit))
    print_list(
        recent, json, ("at", "status#", "bytes#", "key", "seq#", "from", "why…"),
        lambda one: (in_utc(one.at), str(one.status), number_or_dash(one.bytes), one.key or "", number_or_dash(one.seq),
                     one.remote or "", one.reason or ""),
        empty="No delivery is recorded.",
    )  # fmt: skip
