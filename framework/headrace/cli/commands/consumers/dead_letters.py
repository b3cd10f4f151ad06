"""`headrace consumer dead-letters ls|info|export|redrive|purge`: list, show, export, redrive and delete dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.consumer_lookup import ConsumerArguments, administer_consumer
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import JsonOption, LimitOption, YesOption, above, flag
from headrace.cli.options.selection import DryRunOption, options_of
from headrace.cli.options.times import in_utc
from headrace.cli.output.formats import indented_data, one_line_json
from headrace.cli.output.results import print_list, print_next_page, print_result
from headrace.cli.output.stderr import confirm, print_notice
from headrace.model.conditions.selections import DeadLetterCriteria, DeathCriteria
from headrace.model.records import DeadLetter, GroupedBy
from headrace.model.text.counting import count
from headrace.model.text.printing import printable_json
from headrace.model.watching.operations import Job, JobKind

if TYPE_CHECKING:
    from headrace.client import Administration

ShowArguments = Annotated[
    str,
    Parameter(
        name="[STREAM] NAME SEQ",
        required=True,
        help="The consumer, and the seq of the dead letter. You can leave out the stream if only one has a consumer of that name.",
    ),
]


BackgroundOption = Annotated[bool, flag("Let a running server do it in small steps, as a job. For many dead letters.")]

GroupOption = Annotated[
    GroupedBy | None,
    Parameter(
        name="--by",
        show_default=False,
        help="Count them in groups of the same error type, error text, reason, key, or hour or day (UTC) of their death, the largest first.",
    ),
]


if TYPE_CHECKING:
    from headrace.cli.options.selection import CriteriaOptions as DeadLetterSelection
    from headrace.cli.options.selection import CriteriaOptions as DeathSelection
else:
    DeathSelection, DeadLetterSelection = options_of(DeathCriteria), options_of(DeadLetterCriteria)


def ls(
    *consumer: ConsumerArguments,
    selection: DeathSelection = DeathSelection(),  # noqa: B008 - frozen
    by: GroupOption = None,
    above: Annotated[int, above("dead letters", "seq")] = 0,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List the dead letters of a consumer, or count them by what they have in common.

    With --json, each is printed whole, with its data, its error and the
    traceback, which exports them.
    """
    if by is not None:
        if above:
            raise UsageError("--by counts all that match. Leave out --above.")
        _print_groups(backend, consumer, by, selection.criteria() | {"limit": limit}, json)
        return
    criteria = selection.criteria() | {"above": above, "limit": limit}
    letters = administer_consumer(
        backend, consumer, lambda admin, stream, name: admin.dead_letters(stream, name, **criteria)
    )
    print_list(
        letters,
        json,
        ("seq#", "key", "died", "attempts#", "reason", "blocks", "error…"),
        lambda d: (str(d.seq), d.key, d.died_at, d.attempts, d.reason, "key" if d.blocks else "", d.error or ""),
        empty="There are no dead letters.",
    )
    print_next_page(letters, limit, lambda letter: letter.seq)


def _print_groups(
    backend: Backend, consumer: tuple[str, ...], by: GroupedBy, criteria: dict[str, Any], json: bool
) -> None:
    groups = administer_consumer(
        backend, consumer, lambda admin, stream, name: admin.dead_letter_groups(stream, name, by, **criteria)
    )
    print_list(
        groups,
        json,
        ("dead letters#", "first", "last", "lowest#", f"{by}…"),
        lambda group: (str(group.messages), group.first_died_at, group.last_died_at, str(group.lowest), group.value),
        empty="There are no dead letters.",
    )
    if len(groups) >= criteria["limit"]:
        print_notice(f"These are the {len(groups)} largest groups. There may be more, see --limit.")


def info(
    *words: ShowArguments,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show one dead letter, with its data, its error and the traceback."""
    if len(words) < 2 or not (words[-1].isascii() and words[-1].isdigit()):
        raise UsageError(
            "Give the consumer and the seq of a dead letter, such as `orders ship 42`. List them with `ls`."
        )
    seq = int(words[-1])
    letter = administer_consumer(backend, words[:-1], lambda admin, stream, name: admin.dead_letter(stream, name, seq))
    print_result(letter, json, pairs=_facts(letter))


def export(
    *consumer: ConsumerArguments,
    selection: DeadLetterSelection = DeadLetterSelection(),  # noqa: B008 - frozen
    backend: Backend = Backend(),  # noqa: B008 - frozen
) -> None:
    """Print all dead letters that match, one line of JSON each.

    Each is printed whole, with its data, its error and the traceback.
    """
    administer_consumer(backend, consumer, _export, selection.criteria())


async def _export(admin: Administration, stream: str, name: str, criteria: dict[str, Any]) -> None:
    async for page in admin.dead_letters.pages(stream, name, **criteria, limit=None):
        for letter in page:
            sys.stdout.write(printable_json(msgspec.json.encode(letter).decode()) + "\n")


def redrive(
    *consumer: ConsumerArguments,
    selection: DeadLetterSelection = DeadLetterSelection(),  # noqa: B008 - frozen
    dry_run: DryRunOption = False,
    background: BackgroundOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Deliver dead letters again.

    They are delivered in order, and their attempts are counted from zero.
    Without a selection, all of them are redriven. A dead letter stays if the
    stream no longer has its message. The exit code is 1 if a given seq is not a
    dead letter.
    """
    criteria = selection.criteria() | {"dry_run": dry_run}
    if background:
        return _begin(backend, consumer, "redrive", criteria, json)
    redriven = administer_consumer(
        backend, consumer, lambda admin, stream, name: admin.redrive(stream, name, **criteria)
    )
    return _report("To be redriven" if dry_run else "Redriven", "redriven", redriven, selection, dry_run, json)


def purge(
    *consumer: ConsumerArguments,
    selection: DeadLetterSelection = DeadLetterSelection(),  # noqa: B008 - frozen
    dry_run: DryRunOption = False,
    background: BackgroundOption = False,
    yes: YesOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Delete dead letters.

    A key that one of them blocks is unblocked. Without a selection, all of them
    are deleted. The exit code is 1 if a given seq is not a dead letter, or if
    the answer was no.
    """
    skips = backend.skips_confirmation(yes)
    if background:
        criteria = selection.criteria() | {"dry_run": dry_run}
        return _begin(backend, consumer, "purge", criteria, json, asks=not skips)
    purged = administer_consumer(backend, consumer, _purge, selection, dry_run, skips)
    if purged is None:
        return NOT_DONE
    return _report("To be purged" if dry_run else "Purged", "purged", purged, selection, dry_run, json)


async def _purge(
    admin: Administration, stream: str, name: str, selection: DeadLetterSelection, dry_run: bool, yes: bool
) -> int | None:
    criteria = selection.criteria()
    if dry_run:
        return await admin.purge(stream, name, **criteria, dry_run=True)
    if not yes:
        matching = await admin.purge(stream, name, **criteria, dry_run=True)
        if not matching:
            return matching
        if not await confirm(f"Delete {count(matching, 'dead letter')} of {name!r} of {stream!r}?"):
            return None
    return await admin.purge(stream, name, **criteria)


def _begin(
    backend: Backend,
    consumer: tuple[str, ...],
    kind: JobKind,
    criteria: dict[str, Any],
    json: bool,
    *,
    asks: bool = False,
) -> int:
    """Create a job. Returns the exit code."""
    if criteria.pop("dry_run"):
        raise UsageError("A job changes something. Leave out --background or --dry-run.")
    job = administer_consumer(backend, consumer, _create_job, kind, criteria, asks)
    if job is None:
        return NOT_DONE
    number = "dead letters" if job.total is None else count(job.total, "dead letter")
    print_result(job, json, f"The job {job.id} {'redrives' if kind == 'redrive' else 'purges'} {number}.")
    if not json:
        print_notice("A running server works on it. See `headrace job ls`.")
    return 0


async def _create_job(
    admin: Administration, stream: str, name: str, kind: JobKind, criteria: dict[str, Any], asks: bool
) -> Job | None:
    if asks and not await confirm(f"Delete the selected dead letters of {name!r} of {stream!r} in the background?"):
        return None
    return await admin.create_job(stream, name, kind, **criteria)


def _report(result: str, field: str, number: int, selection: DeadLetterSelection, dry_run: bool, json: bool) -> int:
    print_result({field: number, "dry_run": dry_run}, json, f"{result}: {count(number, 'dead letter')}.")
    seqs = selection.criteria()["seqs"]
    missing = max(len(set(seqs)) - number, 0) if seqs else 0
    if missing:
        print_notice(
            f"Not found: {count(missing, 'seq')} of --seq. It is not a dead letter, or retention has removed its message."
        )
    return NOT_DONE if missing else 0


def _facts(letter: DeadLetter) -> list[tuple[str, str]]:
    facts = [
        ("seq", str(letter.seq)),
        ("key", letter.key),
        ("created", in_utc(letter.created_at)),
        ("died", f"{in_utc(letter.died_at)} after {count(letter.attempts, 'attempt')}"),
        ("reason", letter.reason + (", and it blocks its key" if letter.blocks else "")),
        ("error type", letter.error_type or "none"),
        ("error", letter.error or "none"),
    ]
    if letter.headers:
        facts.append(("headers", one_line_json(letter.headers)))
    facts.append(("data", indented_data(letter)))
    if letter.traceback:
        facts.append(("traceback", letter.traceback.rstrip()))
    return facts
