"""`headrace consumer dead-letters ls|show|redrive|purge`: list, show, redrive and delete dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.options.backend import Backend
from headrace.cli.options.common import JsonOption, LimitOption, YesOption, print_json
from headrace.cli.options.connection import administer
from headrace.cli.options.consumer_lookup import ConsumerWords, which
from headrace.cli.options.selection import DryRunOption, Matching
from headrace.cli.options.times import in_utc
from headrace.cli.output.notices import NOT_DONE, confirmed, count, say
from headrace.cli.output.tables import compact, indented, number, print_pairs, print_table
from headrace.cli.problems import UsageProblem
from headrace.model.records import DeadLetter

if TYPE_CHECKING:
    from headrace.client import Administration

ShowWords = Annotated[
    str,
    Parameter(
        name="[STREAM] NAME SEQ",
        required=True,
        help="The consumer, by its name alone where only one stream has such, and the dead letter's seq.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Chosen(Matching):
    """Selects dead letters by seq, key, filter or condition. Without any option it selects all of them."""

    seq: Annotated[
        list[int] | None,
        Parameter(name="--seq", negative="", show_default=False, help="This one; may be given several times."),
    ] = None
    key: Annotated[str | None, Parameter(name="--key", show_default=False, help="All of this key.")] = None

    def criteria(self) -> dict[str, Any]:
        """The arguments for `Admin`."""
        return super().criteria() | {"seqs": self.seq, "key": self.key}

    def left_over(self, found: int) -> int:
        """How many of the given seqs are not dead letters."""
        return max(len(set(self.seq)) - found, 0) if self.seq else 0


def ls(
    *consumer: ConsumerWords,
    matching: Matching = Matching(),  # noqa: B008 - frozen
    above: Annotated[int, Parameter(validator=Number(gte=0), help="Only those above this seq: the next page.")] = 0,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List the dead letters of a consumer."""
    found = administer(backend, _ls, consumer, matching, above, limit)
    if json:
        print_json(found)
    elif not found:
        say("There is no dead letter.")
    else:
        print_table(
            ("seq#", "key", "died", "attempts#", "reason", "blocks", "error…"),
            ((str(d.seq), d.key, in_utc(d.died_at), number(d.attempts), d.reason, "key" if d.blocks else "",
              d.error or "") for d in found),
        )  # fmt: skip
    if len(found) == limit:
        say(f"There may be more: --above {found[-1].seq} goes on.")


async def _ls(
    admin: Administration, words: tuple[str, ...], matching: Matching, above: int, limit: int
) -> list[DeadLetter]:
    stream, name = await which(admin, words)
    return await admin.dead_letters(stream, name, **matching.criteria(), above=above, limit=limit)


def show(
    *words: ShowWords,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show one dead letter, with its data, its error and the traceback."""
    if len(words) < 2 or not (words[-1].isascii() and words[-1].isdigit()):
        raise UsageProblem("Write the consumer and the dead letter's seq, such as `orders ship 42`; `ls` lists them.")
    found = administer(backend, _show, words[:-1], int(words[-1]))
    if json:
        print_json(found)
    else:
        print_pairs(_facts(found))


async def _show(admin: Administration, words: tuple[str, ...], seq: int) -> DeadLetter:
    return await admin.dead_letter(*await which(admin, words), seq)


def redrive(
    *consumer: ConsumerWords,
    chosen: Chosen = Chosen(),
    dry_run: DryRunOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Deliver dead letters again.

    They are delivered in order, and their attempts are counted from zero.
    Without a selection, all of them are redriven. A dead letter stays if the
    stream no longer has its message. The exit code is 1 if a given seq is not a
    dead letter.
    """
    found = administer(backend, _redrive, consumer, chosen, dry_run)
    return _tell("Would redrive" if dry_run else "Redrives", "redriven", found, chosen, dry_run, json)


async def _redrive(admin: Administration, words: tuple[str, ...], chosen: Chosen, dry_run: bool) -> int:
    return await admin.redrive(*await which(admin, words), **chosen.criteria(), dry_run=dry_run)


def purge(
    *consumer: ConsumerWords,
    chosen: Chosen = Chosen(),
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Delete dead letters.

    A key that one of them blocks is unblocked. Without a selection, all of them
    are deleted. The exit code is 1 if a given seq is not a dead letter, or if
    the answer was no.
    """
    found = administer(backend, _purge, consumer, chosen, dry_run, backend.asked(yes))
    if found is None:
        return NOT_DONE
    return _tell("Would purge" if dry_run else "Purged", "purged", found, chosen, dry_run, json)


async def _purge(admin: Administration, words: tuple[str, ...], chosen: Chosen, dry_run: bool, yes: bool) -> int | None:
    stream, name = await which(admin, words)
    criteria = chosen.criteria()
    if dry_run:
        return await admin.purge(stream, name, **criteria, dry_run=True)
    if not yes:
        found = await admin.purge(stream, name, **criteria, dry_run=True)
        if not found:
            return found
        if not await confirmed(f"Delete {count(found, 'dead letter')} of {name!r} of {stream!r}?"):
            return None
    return await admin.purge(stream, name, **criteria)


def _tell(did: str, field: str, found: int, chosen: Chosen, dry_run: bool, json: bool) -> int:
    if json:
        print_json({field: found, "dry_run": dry_run})
    else:
        print(f"{did} {count(found, 'dead letter')}.")
    missing = chosen.left_over(found)
    if missing:
        say(f"{count(missing, 'seq')} of those named by --seq: no such dead letter, or its message is removed.")
    return NOT_DONE if missing else 0


def _facts(letter: DeadLetter) -> list[tuple[str, str]]:
    facts = [
        ("seq", str(letter.seq)),
        ("key", letter.key),
        ("created", in_utc(letter.created_at)),
        ("died", f"{in_utc(letter.died_at)} after {count(letter.attempts, 'attempt')}"),
        ("reason", letter.reason + (", and blocks its key" if letter.blocks else "")),
        ("error", letter.error or "none"),
    ]
    if letter.headers:
        facts.append(("headers", compact(letter.headers)))
    facts.append(("data", indented(letter.data)))
    if letter.traceback:
        facts.append(("traceback", letter.traceback.rstrip()))
    return facts
