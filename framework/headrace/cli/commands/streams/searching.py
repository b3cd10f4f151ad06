"""`headrace stream search|journey`: search messages, and show what became of one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headrace.cli.commands.streams.messages import print_messages
from headrace.cli.commands.streams.streams import StreamName
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import JsonOption, LimitOption
from headrace.cli.options.selection import MessageSelection
from headrace.cli.options.times import in_utc
from headrace.cli.output.formats import indented_data, one_line_json
from headrace.cli.output.json_output import print_json
from headrace.cli.output.stderr import print_notice
from headrace.cli.output.tables import print_pairs, print_table
from headrace.model.records import StoredMessage
from headrace.model.watching.journeys import Journey, JourneyStop
from headrace.model.watching.processes import process_name

if TYPE_CHECKING:
    from headrace.client import Administration


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchSelection(MessageSelection):
    """Selects messages by key, content and time."""

    since: Annotated[
        str | None,
        Parameter(
            name="--since", show_default=False, help="Only messages published since this time; 1h is an hour ago."
        ),
    ] = None
    until: Annotated[
        str | None, Parameter(name="--until", show_default=False, help="Only messages published before this time.")
    ] = None


def search(
    name: StreamName,
    /,
    *,
    selection: SearchSelection = SearchSelection(),
    before: Annotated[
        int | None,
        Parameter(name="--before", show_default=False, help="Only messages with a smaller seq, to continue."),
    ] = None,
    limit: LimitOption = 50,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Search a stream for messages, from the newest one on.

    It takes as many steps as it needs, each of about a second, and ends once it
    has found --limit messages, or at the start of the stream. Ctrl-C ends it.
    """
    criteria = selection.criteria()
    messages, position = administer(backend, _search, name, criteria, before, limit)
    print_messages(messages, json)
    if position is not None:
        print_notice(f"There may be more. Continue with --before {position}.")


async def _search(
    admin: Administration, name: str, criteria: dict[str, Any], before: int | None, limit: int
) -> tuple[list[StoredMessage], int | None]:
    """Search until enough was found. Returns the messages, and where to continue if there may be more."""
    messages: list[StoredMessage] = []
    examined = 0
    while True:
        step = await admin.search(name, **criteria, before=before, limit=limit - len(messages))
        messages += step.messages
        examined += step.examined
        if not step.more or len(messages) >= limit:
            _show_progress("")
            return messages, step.position if step.more else None
        before = step.position
        _show_progress(f"Examined {examined:,}, about {step.remaining:,} remain, found {len(messages):,}.")


def _show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def journey(
    name: StreamName,
    seq: Annotated[int, Parameter(name="SEQ", help="The seq of the message.")],
    /,
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Show one message, and what became of it in each consumer.

    Nothing is kept about a message that a consumer is done with, so each line
    says what is known. The exit code is 1 if nothing is left of the message.
    """
    result = administer(backend, _journey, name, seq)
    if result is None:
        print_notice(
            f"The stream {name!r} has no message {seq}. It was removed, was not committed, or was never published."
        )
        return NOT_DONE
    if json:
        print_json(result)
        return 0
    print_pairs(_facts(result))
    if result.consumers:
        print_table(
            ("consumer", "state", "attempts#", "until", "held by", "why…"),
            map(_row, result.consumers),
        )
    return 0


async def _journey(admin: Administration, name: str, seq: int) -> Journey | None:
    """Return the journey with all consumers."""
    result = await admin.journey(name, seq)
    stops, following = ([], None) if result is None else (list(result.consumers), result.next)
    while following is not None and result is not None:
        page = await admin.journey(name, seq, after=following)
        if page is None:
            break
        stops += page.consumers
        following = page.next
    return None if result is None else _with(result, stops)


def _with(journey: Journey, stops: list[JourneyStop]) -> Journey:
    from msgspec.structs import replace

    return replace(journey, consumers=stops, next=None)


def _facts(journey: Journey) -> list[tuple[str, str]]:
    message, facts = journey.message, [("seq", str(journey.seq))]
    if message is None:
        facts.append(("message", "erased" if journey.gone == "erased" else "removed from the stream"))
        if journey.erased is not None:
            facts.append(("erased", f"{in_utc(journey.erased.erased_at)} by {journey.erased.erased_by}"))
        return facts
    facts += [("key", message.key), ("created", in_utc(message.created_at))]
    if message.expires_at is not None:
        facts.append(("expires", in_utc(message.expires_at)))
    if journey.trace is not None:
        facts.append(("trace", journey.trace.trace_id))
    if message.headers:
        facts.append(("headers", one_line_json(message.headers)))
    return [*facts, ("data", indented_data(message))]


def _row(stop: JourneyStop) -> tuple[object, ...]:
    until = stop.until or stop.lease_until or ""
    return stop.consumer, stop.state, stop.attempts, until, _owner(stop), _why(stop)


def _owner(stop: JourneyStop) -> str:
    return "" if stop.owner is None else process_name(stop.owner.host, stop.owner.pid)


def _why(stop: JourneyStop) -> str:
    where = "" if stop.failed_by is None else f" (in {stop.failed_by})"
    return stop.reason if stop.error is None else f"{stop.reason} {stop.error}{where}"
