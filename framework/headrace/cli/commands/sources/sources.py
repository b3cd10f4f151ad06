"""`headrace source webhook add|edit`, `headrace source ls|info|rm`: sources that feed streams.

`captures.py` has the commands for sources that capture tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headrace.cli.commands.sources.facts import SourceRef, facts, gist, how, progress
from headrace.cli.options.backend import Backend
from headrace.cli.options.common import JsonOption, YesOption, flag, print_json
from headrace.cli.options.connection import administer
from headrace.cli.options.from_settings import Options, Special, from_settings, lines_of, nothing, option, texts
from headrace.cli.options.times import told
from headrace.cli.output.notices import NOT_DONE, confirmed, say
from headrace.cli.output.tables import print_pairs, print_table
from headrace.cli.problems import UsageProblem
from headrace.model.capture import BackfillInfo
from headrace.model.sources import SourceInfo
from headrace.sources.webhook import WebhookSpec

if TYPE_CHECKING:
    from headrace.client import Administration

SourceName = Annotated[str, Parameter(help="The source's name.")]


def _header_names(given: list[str], _: str) -> tuple[str, ...]:
    return () if nothing(given) else tuple(map(str.lower, given))


@from_settings(
    WebhookSpec,
    secrets=Special("--secret", texts, "Other users of the machine can see it while the command runs."),
    keep_headers=Special("--keep-header", parse=_header_names),
)
@dataclass(frozen=True, kw_only=True)
class WebhookSettings(Options):
    """The webhook source settings given as options."""

    secret_file: Annotated[
        str | None,
        option(
            "--secret-file", "A file with the secret, or several, each on a line. - is standard input.",
            allow_leading_hyphen=True,
        ),
    ] = None  # fmt: skip

    def given(self) -> dict[str, Any]:
        """The given settings. Raises `UsageProblem`, `NoInput`."""
        found = super().given()
        if self.secret_file is not None:
            if "secrets" in found:
                raise UsageProblem("Give --secret or --secret-file, and not both.")
            found["secrets"] = tuple(lines_of(self.secret_file, "the secret"))
            if not found["secrets"]:
                raise UsageProblem(f"The file {self.secret_file!r} has no secret in it: write one on a line.")
        if "signature" in found and found["signature"] is None:
            found = {"secrets": (), **found}
        return found


def add_webhook(
    name: SourceName,
    /,
    *,
    stream: Annotated[str, Parameter(help="The stream that deliveries are published to.")],
    settings: WebhookSettings = WebhookSettings(),
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
    did = "Created" if new else "There is"
    print(f"{did} the source {name!r}: what is sent to /api/webhook/{name} goes to the stream {created.stream!r}.")
    if not created.settings["signature"]:
        say("Its deliveries are not signed: whoever knows the address can publish by it. See --signature.")


async def _add(admin: Administration, spec: WebhookSpec) -> tuple[bool, SourceInfo]:
    """Create the source. Returns whether it is new (False if it existed with the same settings), and its info."""
    new = await admin.create_source(spec)
    return new, await admin.source(spec.name)


def edit_webhook(
    source: SourceRef,
    /,
    *,
    settings: WebhookSettings = WebhookSettings(),
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Change settings of a webhook source.

    Settings that you don't give stay unchanged. Servers apply the change within
    two seconds. To change a secret without losing a delivery, give both the old
    one and the new one, change it at the sender, and then give the new one
    alone.
    """
    changes = settings.given()
    if not changes:
        raise UsageProblem("There is nothing to change: give a setting, such as --key '{name}.{body.type}'.")
    changed = administer(backend, lambda admin: admin.edit_source(source, **changes))
    if json:
        print_json(changed)
    else:
        print(f"Changed the source {changed.name!r}.")
        print_pairs(facts(changed))


def ls(*, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """List all sources."""
    found = administer(backend, lambda admin: admin.sources())
    _list(
        found,
        json,
        "There is no source yet: `headrace source webhook add` makes one, and `headrace source postgres add`.",
    )


def ls_captures(*, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """List the sources that capture tables."""
    found = administer(backend, lambda admin: admin.sources())
    captures = [one for one in found if one.kind == "postgres"]
    _list(captures, json, "No table is captured yet: `headrace source postgres add --table public.orders` begins.")


def _list(found: list[SourceInfo], json: bool, none: str) -> None:
    if json:
        print_json(found)
    elif not found:
        say(none)
    else:
        print_table(
            ("source", "kind", "stream", "state", "about…"),
            ((one.name, one.kind, one.stream, *gist(one)) for one in found),
        )


def info(source: SourceRef, /, *, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """Show one source: its settings without secrets, and its state."""
    found, backfills = administer(backend, _info, source, not json)
    if json:
        print_json(found)
        return
    print_pairs(
        [
            ("source", found.name),
            ("kind", found.kind),
            ("stream", found.stream),
            *facts(found),
            *([] if found.capture is None else how(found.capture)),
            *((f"backfill of {one.table}", progress(one) or one.state) for one in backfills),
            ("created", told(found.created_at)),
            ("changed", told(found.updated_at)),
        ]
    )


async def _info(admin: Administration, ref: str, whole: bool) -> tuple[SourceInfo, list[BackfillInfo]]:
    """The source, and its queued and running backfills."""
    found = await admin.source(ref)
    if not whole or found.kind != "postgres":
        return found, []
    return found, [one for one in await admin.backfills(found.id) if one.state in ("queued", "running")]


def rm(
    source: SourceRef,
    /,
    *,
    yes: YesOption = False,
    force: Annotated[
        bool, flag("Also if its replication slot or its publication can't be dropped, which then are left behind.")
    ] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Remove a source.

    The messages that it has published stay in its stream. Later deliveries to a
    webhook source are refused. For a source that captures tables, the
    replication slot and the publication that were made for it are dropped.
    """
    done, left = administer(backend, _rm, source, backend.asked(yes), force)
    if not done:
        return NOT_DONE
    if json:
        print_json({"deleted": source, "left": left})
    else:
        print(f"Removed the source {source!r}.")
    if left is not None:
        say(left)
    return 0


async def _rm(admin: Administration, ref: str, yes: bool, force: bool) -> tuple[bool, str | None]:
    """Remove the source. Returns whether it was removed, and a sentence about what was left behind."""
    if not yes and not await confirmed(_question(await admin.source(ref))):
        return False, None
    return True, await admin.delete_source(ref, force=force)


def _question(source: SourceInfo) -> str:
    does = "captures tables into" if source.kind == "postgres" else "delivers to"
    return f"Remove the source {source.name!r}, which {does} {source.stream!r}?"
