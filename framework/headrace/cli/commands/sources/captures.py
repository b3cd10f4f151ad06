"""`headrace source postgres add|edit|check|pause|resume`: sources that capture tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headrace.cli.commands.sources.facts import SourceRef, facts
from headrace.cli.options.backend import Backend
from headrace.cli.options.capture import CaptureBeginning, CaptureOptions, named_after
from headrace.cli.options.common import JsonOption, flag, print_json
from headrace.cli.options.connection import administer
from headrace.cli.output.notices import NOT_DONE, count, say
from headrace.cli.output.tables import print_pairs, print_table
from headrace.cli.problems import UsageProblem
from headrace.model.capture import Finding
from headrace.model.errors import ConfigurationError, UnknownStream
from headrace.model.sources import SourceInfo

if TYPE_CHECKING:
    from headrace.client import Administration
    from headrace.sources.postgres.spec import PostgresSpec

_SIGNS = {"ok": "ok", "warning": "warning", "error": "ERROR"}


class Unfit(ConfigurationError):
    """The tables can't be captured as requested."""


def add(
    name: Annotated[
        str | None, Parameter(show_default=False, help="The source's name; by default the table's.")
    ] = None,
    /,
    *,
    stream: Annotated[
        str | None, Parameter(show_default=False, help="The stream to fill; by default it is called as the source.")
    ] = None,
    settings: CaptureOptions = CaptureOptions(),  # noqa: B008 - frozen
    beginning: CaptureBeginning = CaptureBeginning(),  # noqa: B008 - frozen
    check: Annotated[
        bool,
        Parameter(negative="--no-check", show_default=False, help="Look first whether it can work, as is the default."),
    ] = True,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Capture tables: their rows and each later change become messages of a stream.

    The stream is created unless it exists. Capturing starts as soon as a
    process captures: `headrace serve`, or an app that does. A source that
    exists with the same settings is left unchanged.
    """
    from headrace.sources.postgres.spec import PostgresSpec  # it imports the store

    given = settings.given() | beginning.given()
    name = name or named_after(given.get("tables"))
    if not given.get("tables"):
        raise UsageProblem("Say which table to capture: --table public.orders.")
    spec = PostgresSpec(name=name, stream=stream or name, **given)
    new, new_stream, created = administer(backend, _add, spec, check, backend.as_curl)
    if json:
        print_json(created)
        return
    did = "Created" if new else "There is"
    made = ", which is new," if new_stream else ""
    print(f"{did} the source {name!r}: {_tables(created)} into the stream {created.stream!r}{made} as {spec.mode}.")
    if new:
        say(f"It is captured while `headrace serve` runs, or an app that does; see `headrace source info {name}`.")


async def _add(admin: Administration, spec: PostgresSpec, check: bool, as_curl: bool) -> tuple[bool, bool, SourceInfo]:
    """Create the source. Returns whether it is new, whether its stream is new, and its info."""
    if as_curl:  # print the request that matters, and end here
        await admin.create_source(spec)
    if check:
        _heed(await admin.check_spec(spec))
    try:
        new_stream = await admin.stream(spec.stream) is None
    except UnknownStream:
        new_stream = True
    new = await admin.create_source(spec)
    return new, new_stream, await admin.source(spec.name)


def _heed(findings: list[Finding]) -> None:
    """Print the warnings, and raise all errors together."""
    for finding in findings:
        if finding.level == "warning":
            say(_sentence(finding))
    errors = [Unfit(_sentence(finding)) for finding in findings if finding.level == "error"]
    if errors:
        raise ExceptionGroup(
            "the tables can't be captured", [*errors, Unfit("Nothing was done; --no-check doesn't look.")]
        )


def _sentence(finding: Finding) -> str:
    mend = f" Mend it with: {finding.mend}" if finding.mend else ""
    return f"{finding.what}: {finding.told}{mend}"


def edit(
    source: SourceRef,
    /,
    *,
    settings: CaptureOptions = CaptureOptions(),  # noqa: B008 - frozen
    check: Annotated[
        bool,
        Parameter(
            negative="--no-check", show_default=False, help="Look afterwards whether it can work, as is the default."
        ),
    ] = True,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Change what is captured, and how.

    Settings that you don't give stay unchanged. --table replaces the whole list
    of tables. Messages in the stream stay unchanged. Tables that are new to the
    source are backfilled, unless --no-backfill is set.
    """
    changes = settings.given()
    if not changes:
        raise UsageProblem("There is nothing to change: give a setting, such as --rate 5000.")
    changed, findings = administer(backend, _edit, source, changes, check)
    if json:
        print_json(changed)
    else:
        print(f"Changed the source {changed.name!r}.")
        print_pairs(facts(changed))
    for finding in findings:
        if finding.level != "ok":
            say(_sentence(finding))


async def _edit(
    admin: Administration, source: str, changes: dict[str, Any], check: bool
) -> tuple[SourceInfo, list[Finding]]:
    """Change the source. Returns its info, and the findings of a check of its tables.

    The check runs after the change, because only the server knows all settings of the source.
    """
    changed = await admin.edit_source(source, **changes)
    return changed, await admin.check_source(changed.id) if check else []


def check(
    source: SourceRef,
    /,
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Check whether the tables of a source can be captured, and show how to correct problems.

    The exit code is 1 if something can't work.
    """
    findings = administer(backend, lambda admin: admin.check_source(source))
    errors = sum(finding.level == "error" for finding in findings)
    if json:
        print_json(findings)
        return NOT_DONE if errors else 0
    print_table(
        ("", "what", "how it is"),
        ((_SIGNS[finding.level], finding.what, finding.told) for finding in findings),
    )
    mending = list(dict.fromkeys(finding.mend for finding in findings if finding.mend))
    if mending:
        print("\nTo mend it:")
        for statement in mending:
            print(f"  {statement}")
    if errors:
        say(f"{count(errors, 'thing')} keep{'s' if errors == 1 else ''} it from being captured.")
    return NOT_DONE if errors else 0


def pause(
    source: SourceRef,
    /,
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Capture nothing more, until it is resumed.

    Meanwhile the captured server keeps all WAL that is not captured yet. Don't
    leave a source paused for long.
    """
    paused = administer(backend, lambda admin: admin.pause_source(source))
    if json:
        print_json(paused)
    else:
        print(
            f"Paused the source {paused.name!r}. Its slot keeps WAL until `headrace source postgres resume {paused.name}`."
        )


def resume(
    source: SourceRef,
    /,
    *,
    anew: Annotated[
        bool, flag("Not from there, but with a new slot, and all tables read again: for a slot that is lost.")
    ] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Capture again, from where it was paused."""
    resumed = administer(backend, lambda admin: admin.resume_source(source, anew=anew))
    if json:
        print_json(resumed)
    elif anew:
        print(f"The source {resumed.name!r} begins anew, with a backfill of {_tables(resumed)}.")
    else:
        print(f"Resumed the source {resumed.name!r}.")


def _tables(source: SourceInfo) -> str:
    tables: list[Any] = source.settings["tables"]
    return tables[0] if len(tables) == 1 else f"{len(tables):,} tables"
