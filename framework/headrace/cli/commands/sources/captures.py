"""`headrace source postgres add|edit|check|pause|resume`: sources that capture tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headrace.cli.commands.sources.facts import SourceRef, setting_facts
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.capture import CaptureBeginning, CaptureOptions, named_after
from headrace.cli.options.common import JsonOption, flag
from headrace.cli.output.json_output import print_json
from headrace.cli.output.results import print_result
from headrace.cli.output.stderr import confirm, print_notice
from headrace.cli.output.tables import print_table
from headrace.model.capture import Finding
from headrace.model.errors import ConfigurationError, UnknownSource, UnknownStream
from headrace.model.records import StreamInfo
from headrace.model.sources import SourceInfo, stream_in_use
from headrace.model.text.counting import count
from headrace.model.text.printing import printable, printable_lines

if TYPE_CHECKING:
    from headrace.client import Administration
    from headrace.sources.postgres.spec import PostgresSpec

_SIGNS = {"ok": "ok", "warning": "warning", "error": "ERROR"}


class NotCapturable(ConfigurationError):
    """The tables can't be captured as requested."""


def _check(when: str) -> Parameter:
    """Declare the option that checks the tables."""
    text = f"Check {when} whether the tables can be captured. This is the default."
    return Parameter(negative="--no-check", show_default=False, help=text)


def add(
    name: Annotated[str | None, Parameter(show_default=False, help="The source's name. Default: the table's.")] = None,
    /,
    *,
    stream: Annotated[
        str | None,
        Parameter(show_default=False, help="The stream to publish to. Default: a stream with the source's name."),
    ] = None,
    settings: CaptureOptions = CaptureOptions(),  # noqa: B008 - frozen
    beginning: CaptureBeginning = CaptureBeginning(),  # noqa: B008 - frozen
    into_existing: Annotated[
        bool, flag("Capture into a stream that has messages or consumers already, without asking.")
    ] = False,
    check: Annotated[bool, _check("first")] = True,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Capture tables: their rows and all later changes become messages of a stream.

    The stream is created if it doesn't exist. A process must run that captures
    sources: `headrace serve`, or an app. A source that exists with the same
    settings is left unchanged.
    """
    from headrace.sources.postgres.spec import PostgresSpec  # it imports the store

    given = settings.given() | beginning.given()
    name = name or named_after(given.get("tables"))
    if not given.get("tables"):
        raise UsageError("Give the table to capture, such as --table public.orders.")
    spec = PostgresSpec(name=name, stream=stream or name, **given)
    added = administer(backend, _add, spec, check, into_existing, backend.as_curl)
    if added is None:
        return NOT_DONE
    new, new_stream, created = added
    if json:
        print_json(created)
        return 0
    result = "Created the" if new else "Unchanged: the"
    stream_kind = "new stream" if new_stream else "stream"
    print(
        f"{result} source {name!r}. It captures {_tables(created)} into the {stream_kind} {created.stream!r} as {spec.mode}."
    )
    if new:
        print_notice(
            f"Capturing needs a running `headrace serve` or app. See its state with `headrace source info {name}`."
        )
    return 0


async def _add(
    admin: Administration, spec: PostgresSpec, check: bool, into_existing: bool, as_curl: bool
) -> tuple[bool, bool, SourceInfo] | None:
    """Create the source. Returns whether it is new, whether its stream is new, and its info, or None if the answer was
    no."""
    if as_curl:  # print the request that matters, and end here
        await admin.create_source(spec, into_existing=into_existing)
    if check:
        _report_findings(await admin.check_spec(spec))
    try:
        existing: StreamInfo | None = await admin.stream(spec.stream)
    except UnknownStream:
        existing = None
    new_stream = existing is None
    if existing is not None and (existing.messages or existing.consumers) and not into_existing:
        if not await _source_exists(admin, spec.name) and not await _may_fill(existing, spec):
            return None
        into_existing = True
    new = await admin.create_source(spec, into_existing=into_existing)
    return new, new_stream, await admin.source(spec.name)


async def _source_exists(admin: Administration, name: str) -> bool:
    try:
        await admin.source(name)
    except UnknownSource:
        return False
    return True


async def _may_fill(stream: StreamInfo, spec: PostgresSpec) -> bool:
    """Ask whether to capture into a stream that is in use. Raises `UsageError` if there is no terminal to ask."""
    about = stream_in_use(stream.name, stream.messages, stream.consumers, backfill=spec.backfill)
    if not sys.stdin.isatty():
        raise UsageError(f"{about} Give another --stream, or --into-existing to capture into this one.")
    return await confirm(f"{about} Capture into it?")


def _report_findings(findings: list[Finding]) -> None:
    """Print the warnings, and raise all errors together."""
    for finding in findings:
        if finding.level == "warning":
            print_notice(_finding_text(finding))
    errors = [NotCapturable(_finding_text(finding)) for finding in findings if finding.level == "error"]
    if errors:
        raise ExceptionGroup(
            "the tables can't be captured",
            [*errors, NotCapturable("Nothing was changed. To skip this check, give --no-check.")],
        )


def _finding_text(finding: Finding) -> str:
    fix = f" To fix it: {finding.hint}" if finding.hint else ""
    return f"{finding.what}: {finding.message}{fix}"


def edit(
    source: SourceRef,
    /,
    *,
    settings: CaptureOptions = CaptureOptions(),  # noqa: B008 - frozen
    check: Annotated[bool, _check("afterwards")] = True,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Change settings of a source that captures tables.

    Settings that you don't give stay unchanged. --table replaces the whole list
    of tables. Messages in the stream stay unchanged. Tables that are new to the
    source are backfilled, unless --no-backfill is set.
    """
    changes = settings.given()
    if not changes:
        raise UsageError("There is nothing to change. Give a setting, such as --rate 5000.")
    changed, findings = administer(backend, _edit, source, changes, check)
    print_result(changed, json, f"Changed the source {changed.name!r}.", setting_facts(changed))
    for finding in findings:
        if finding.level != "ok":
            print_notice(_finding_text(finding))


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

    The exit code is 1 if there are errors.
    """
    findings = administer(backend, lambda admin: admin.check_source(source))
    errors = sum(finding.level == "error" for finding in findings)
    if json:
        print_json(findings)
        return NOT_DONE if errors else 0
    print_table(
        ("", "check", "result"),
        ((_SIGNS[finding.level], finding.what, finding.message) for finding in findings),
    )
    fixes = list(dict.fromkeys(finding.hint for finding in findings if finding.hint))
    if fixes:
        print("\nTo fix it:")
        for statement in fixes:
            print(f"  {printable_lines(statement)}")
    if errors:
        print_notice(f"The source can't be captured because of {count(errors, 'error')}.")
    return NOT_DONE if errors else 0


def _tables(source: SourceInfo) -> str:
    tables: list[Any] = source.settings["tables"]
    return printable(tables[0]) if len(tables) == 1 else f"{len(tables):,} tables"
