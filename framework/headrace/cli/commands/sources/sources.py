"""`headrace source webhook add|edit`, `headrace source ls|info|rm`: sources that feed streams.

`captures.py` has the commands for sources that capture tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.commands.sources.facts import (
    SourceRef,
    backfill_progress,
    capture_facts,
    setting_facts,
    summary,
    unfinished_backfills,
)
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import JsonOption, YesOption, flag
from headrace.cli.options.times import time_or_dash
from headrace.cli.options.webhook import WebhookSettings
from headrace.cli.output.json_output import print_json
from headrace.cli.output.results import print_list, print_result
from headrace.cli.output.stderr import confirm, print_notice
from headrace.cli.output.tables import print_pairs
from headrace.model.capture import BackfillInfo
from headrace.model.sources import SourceInfo
from headrace.sources.webhook import WebhookSpec

if TYPE_CHECKING:
    from headrace.client import Administration

SourceName = Annotated[str, Parameter(help="The source's name.")]


def add_webhook(
    name: SourceName,
    /,
    *,
    stream: Annotated[str, Parameter(help="The stream to publish to.")],
    settings: WebhookSettings = WebhookSettings(),  # noqa: B008 - frozen
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Receive webhooks at /api/webhook/NAME of the server and store them as messages of a stream.

    A source that exists with the same settings is left unchanged.
    """
    new, created = administer(backend, _add, WebhookSpec(name=name, stream=stream, **settings.given()))
    if json:
        print_json(created)
        return
    result = "Created the" if new else "Unchanged: the"
    print(
        f"{result} source {name!r}. Webhooks sent to /api/webhook/{name} are published to the stream {created.stream!r}."
    )
    if not created.settings["signature"]:
        print_notice(
            "Signatures are not checked, so any client that can reach the server can publish through this source. See --signature."
        )


async def _add(admin: Administration, spec: WebhookSpec) -> tuple[bool, SourceInfo]:
    """Create the source. Returns whether it is new (False if it existed with the same settings), and its info."""
    new = await admin.create_source(spec)
    return new, await admin.source(spec.name)


def edit_webhook(
    source: SourceRef,
    /,
    *,
    settings: WebhookSettings = WebhookSettings(),  # noqa: B008 - frozen
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Change settings of a webhook source.

    Settings that you don't give stay unchanged. Servers apply the change within
    two seconds. To change a secret without losing deliveries, give the old and
    the new secret, change the secret at the sender, and then give only the new
    one. The secret "…" stands for the secrets that the source has.
    """
    changes = settings.given()
    if not changes:
        raise UsageError("There is nothing to change. Give a setting, such as --key '{name}.{body.type}'.")
    changed = administer(backend, lambda admin: admin.edit_source(source, **changes))
    print_result(changed, json, f"Changed the source {changed.name!r}.", setting_facts(changed))


def ls(*, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """List all sources."""
    sources = administer(backend, lambda admin: admin.sources())
    _list(
        sources,
        json,
        "There are no sources. Create one with `headrace source webhook add` or `headrace source postgres add`.",
    )


def ls_captures(*, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """List the sources that capture tables."""
    sources = administer(backend, lambda admin: admin.sources())
    captures = [one for one in sources if one.kind == "postgres"]
    _list(
        captures, json, "No tables are captured. Capture one with `headrace source postgres add --table public.orders`."
    )


def _list(sources: list[SourceInfo], json: bool, empty: str) -> None:
    columns = ("source", "kind", "stream", "state", "summary…")
    print_list(sources, json, columns, lambda one: (one.name, one.kind, one.stream, *summary(one)), empty=empty)


def info(source: SourceRef, /, *, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """Show one source: its settings without secrets, and its state."""
    state, backfills = administer(backend, _info, source, not json)
    if json:
        print_json(state)
        return
    print_pairs(
        [
            ("source", state.name),
            ("kind", state.kind),
            ("stream", state.stream),
            *setting_facts(state),
            *([] if state.capture is None else capture_facts(state.capture)),
            *((f"backfill of {one.table}", backfill_progress(one) or one.state) for one in backfills),
            ("created", time_or_dash(state.created_at)),
            ("changed", time_or_dash(state.updated_at)),
        ]
    )


async def _info(admin: Administration, ref: str, with_backfills: bool) -> tuple[SourceInfo, list[BackfillInfo]]:
    """Return the source, and its queued and running backfills."""
    state = await admin.source(ref)
    if not with_backfills or state.kind != "postgres":
        return state, []
    return state, await unfinished_backfills(admin, state.id)


def rm(
    source: SourceRef,
    /,
    *,
    yes: YesOption = False,
    force: Annotated[
        bool, flag("Remove the source even if its replication slot or its publication can't be dropped.")
    ] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Remove a source.

    The messages that it has published stay in its stream. Later deliveries to a
    webhook source are rejected. For a source that captures tables, the
    replication slot and the publication that Headrace created are dropped.
    """
    removed, left_behind = administer(backend, _rm, source, backend.skips_confirmation(yes), force)
    if not removed:
        return NOT_DONE
    print_result({"deleted": source, "left": left_behind}, json, f"Removed the source {source!r}.")
    if left_behind is not None:
        print_notice(left_behind)
    return 0


async def _rm(admin: Administration, ref: str, yes: bool, force: bool) -> tuple[bool, str | None]:
    """Remove the source. Returns whether it was removed, and a description of what was left behind."""
    if not yes and not await confirm(_question(await admin.source(ref))):
        return False, None
    return True, await admin.delete_source(ref, force=force)


def _question(source: SourceInfo) -> str:
    purpose = "captures tables into" if source.kind == "postgres" else "publishes webhooks to"
    return f"Remove the source {source.name!r}, which {purpose} {source.stream!r}?"
