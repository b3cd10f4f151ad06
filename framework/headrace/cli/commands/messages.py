"""`headrace stream view|send|republish`: show messages, send one, and copy messages to another stream."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.commands.streams import StreamName
from headrace.cli.options.backend import Backend
from headrace.cli.options.common import MOST, JsonOption, print_json
from headrace.cli.options.connection import administer
from headrace.cli.options.selection import Between, DryRunOption, Matching, bounds
from headrace.cli.options.times import after, future, in_utc
from headrace.cli.output.notices import count, say
from headrace.cli.output.tables import compact, print_table
from headrace.cli.problems import UsageProblem
from headrace.model import payloads
from headrace.model.conditions import CREATED_AT, And, Condition, parse
from headrace.model.errors import InvalidData
from headrace.model.keys import check_key
from headrace.model.records import StoredMessage

_COUNT = Number(gte=1, lte=MOST)
_SHOWN = 10


def view(
    name: StreamName,
    /,
    *,
    first: Annotated[
        int | None, Parameter(validator=_COUNT, show_default=False, help="The first so many, in their order.")
    ] = None,
    last: Annotated[
        int | None, Parameter(validator=_COUNT, show_default=False, help="The last so many; 10 unless told otherwise.")
    ] = None,
    since: Annotated[
        str | None,
        Parameter(
            name="--from", show_default=False, help="Begin at a seq or a time; 1h is an hour ago. Without --last."
        ),
    ] = None,
    matching: Matching = Matching(),  # noqa: B008 - frozen
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show the first or the last messages of a stream.

    It doesn't matter whether consumers have received them. Viewing changes
    nothing.
    """
    if first is not None and last is not None:
        raise UsageProblem("Give --first or --last, and not both.")
    if last is not None and since is not None:
        raise UsageProblem("Give --from or --last, and not both: what follows a place is its --first.")
    newest = first is None and since is None
    start = bounds(since, "start")
    where = _not_before(start.get("start_time"), matching.where)
    found = administer(
        backend,
        lambda admin: admin.messages(
            name, filter=matching.filter, where=where, start_seq=start.get("start_seq"), limit=first or last or _SHOWN,
            newest=newest,
        ),
    )  # fmt: skip
    if json:
        print_json(found)
    elif not found:
        say("There is no such message.")
    else:
        _print_messages(found)


def _not_before(moment: datetime | None, where: str | None) -> str | Condition | None:
    """The condition, combined with a condition that the message is not older than a time."""
    if moment is None:
        return where
    young = CREATED_AT >= moment  # noqa: SIM300 - a field, and no constant
    return young if where is None else And((young, parse(where)))


def _print_messages(messages: list[StoredMessage]) -> None:
    with_headers = any(one.headers for one in messages)
    columns = ("seq#", "created", "key", *(("headers",) if with_headers else ()), "data…")
    print_table(
        columns,
        ((str(one.seq), in_utc(one.created_at), one.key, *((compact(one.headers),) if with_headers else ()),
          compact(one.data)) for one in messages),
    )  # fmt: skip


def send(
    name: StreamName,
    key: Annotated[str, Parameter(help="Tokens parted by dots, such as orders.us.42.")],
    data: Annotated[
        str,
        Parameter(name="JSON", allow_leading_hyphen=True, help="The data, as JSON; - reads it from standard input."),
    ],
    /,
    *,
    headers: Annotated[
        str | None, Parameter(show_default=False, help='A JSON object that travels along, such as {"trace": "abc"}.')
    ] = None,
    delay: Annotated[
        str | None, Parameter(show_default=False, help="Publish it only after so long, such as 5m.")
    ] = None,
    at: Annotated[str | None, Parameter(show_default=False, help="Publish it only at this time.")] = None,
    message_id: Annotated[
        str | None,
        Parameter(show_default=False, help="Publish nothing if this id was given within the stream's dedupe window."),
    ] = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Send one message to a stream.

    To send the lines of a file, see `headrace publish`.
    """
    text = _json(sys.stdin.read() if data == "-" else data, "data")
    head = None if headers is None else _object(headers)
    due = _due(delay, at)
    check_key(key)
    seq = administer(backend, lambda admin: admin.send(name, key, text, head, message_id=message_id, deliver_at=due))
    if json:
        print_json({"seq": seq, "deliver_at": due if seq is None else None})
    elif seq is not None:
        print(f"Sent to {name!r} as seq {seq}.")
    elif due is not None:
        print(f"Scheduled for {name!r} at {in_utc(due)}.")
    else:
        print(f"Sent to {name!r}.")  # a server doesn't return the seq


def republish(
    name: StreamName,
    target: Annotated[str, Parameter(help="The stream that they are published to.")],
    /,
    *,
    between: Between = Between(),  # noqa: B008 - frozen
    dry_run: DryRunOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Publish messages of a stream again, to another stream.

    They keep their order and their headers. Without a selection, all messages
    are published.
    """
    criteria = between.criteria()
    found = administer(backend, lambda admin: admin.republish(name, target, **criteria, dry_run=dry_run))
    if json:
        print_json({"republished": found, "dry_run": dry_run})
    else:
        print(f"{'Would republish' if dry_run else 'Republished'} {count(found, 'message')} of {name!r} to {target!r}.")


def _due(delay: str | None, at: str | None) -> datetime | None:
    if delay is not None and at is not None:
        raise UsageProblem("Give --delay or --at, and not both.")
    if delay is not None:
        return after(delay, "--delay")
    return None if at is None else future(at, "--at")


def _json(text: str, what: str) -> str:
    """The text, if it is valid JSON. Raises `InvalidData`, which says what valid input would be."""
    try:
        return payloads.encode(msgspec.json.decode(text.encode(), type=msgspec.Raw))
    except UnicodeEncodeError:
        raise InvalidData(f"The {what} is not text in UTF-8: {text[:80]!r}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidData(f"The {what} is not JSON: {error}: {text[:80]!r}.{_advice(text)}") from error


def _advice(text: str) -> str:
    """Advice for text that was meant as JSON and lost its quotes to the shell."""
    word = text if text.isalnum() and len(text) <= 20 else "text"
    return "" if text.lstrip()[:1] in tuple('{["') else f" Text has quotes of its own, as in '\"{word}\"'."


def _object(text: str) -> str:
    checked = _json(text, "value of --headers")
    if not checked.lstrip().startswith("{"):
        raise InvalidData(f'The value of --headers must be a JSON object, such as {{"trace": "abc"}}, not {text[:80]}.')
    return checked
