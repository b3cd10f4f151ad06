"""`headrace stream view|send|republish|erase|erased|scheduled`: show messages, send one, copy messages to another stream,
delete some for good, and show those that are published later."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.commands.streams.streams import StreamName
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import MOST, JsonOption, LimitOption, YesOption
from headrace.cli.options.from_settings import Options, Special, from_settings
from headrace.cli.options.selection import DryRunOption, MessageSelection, RangeSelection, parse_bound
from headrace.cli.options.times import duration, future, in_utc, time_to_live
from headrace.cli.output.formats import one_line_data, one_line_json
from headrace.cli.output.json_output import print_json
from headrace.cli.output.results import print_list, print_result
from headrace.cli.output.stderr import confirm, print_notice
from headrace.model.conditions import CREATED_AT, And, Condition, parse
from headrace.model.errors import InvalidData
from headrace.model.keys import check_key
from headrace.model.messages import payloads
from headrace.model.messages.publish_options import MAX_DELAY, PublishOptions
from headrace.model.records import StoredMessage
from headrace.model.text.counting import count

if TYPE_CHECKING:
    from headrace.client import Administration

_LIMIT = Number(gte=1, lte=MOST)
_DEFAULT_LIMIT = 10


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WhichMessages:
    """Selects a part of a stream."""

    first: Annotated[
        int | None,
        Parameter(validator=_LIMIT, show_default=False, help="The number of first messages to show, oldest first."),
    ] = None
    last: Annotated[
        int | None,
        Parameter(validator=_LIMIT, show_default=False, help="The number of last messages to show. Default: 10."),
    ] = None
    since: Annotated[
        str | None,
        Parameter(
            name="--from", show_default=False, help="Start at a seq or a time; 1h is an hour ago. Not with --last."
        ),
    ] = None
    key: Annotated[
        str | None, Parameter(name="--key", show_default=False, help="Only messages with exactly this key.")
    ] = None


def view(
    name: StreamName,
    /,
    *,
    which: WhichMessages = WhichMessages(),
    selection: MessageSelection = MessageSelection(),  # noqa: B008 - frozen
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show the first or the last messages of a stream.

    It shows messages whether or not consumers have received them, and changes
    nothing.
    """
    first, last, since = which.first, which.last, which.since
    if first is not None and last is not None:
        raise UsageError("Give either --first or --last, not both.")
    if last is not None and since is not None:
        raise UsageError("Give either --from or --last, not both. Use --from with --first.")
    start = parse_bound(since, "start")
    criteria: dict[str, Any] = {
        "filter": selection.filter,
        "where": _and_not_before(start.get("start_time"), selection.where),
        "start_seq": start.get("start_seq"),
        "limit": first or last or _DEFAULT_LIMIT,
        "newest": first is None and since is None,
        "key": which.key,
    }
    messages = administer(backend, lambda admin: admin.messages(name, **criteria))
    print_messages(messages, json)


def print_messages(messages: list[StoredMessage], json: bool) -> None:
    """Print messages."""
    optional = {"expires": any(one.expires_at for one in messages), "headers": any(one.headers for one in messages)}
    names = ("seq#", "created", "expires", "key", "headers", "data…")
    columns = [name for name in names if optional.get(name, True)]

    def row(one: StoredMessage) -> list[object]:
        place = (str(one.seq), one.created_at, one.expires_at or "never")
        cells = dict(zip(names, (*place, one.key, one_line_json(one.headers), one_line_data(one)), strict=True))
        return [cells[name] for name in columns]

    print_list(messages, json, columns, row, empty="No messages found.")


def _and_not_before(moment: datetime | None, where: str | None) -> str | Condition | None:
    """Combine a condition with the condition that the message is not older than a time."""
    if moment is None:
        return where
    recent = CREATED_AT >= moment  # noqa: SIM300 - a field, and no constant
    return recent if where is None else And((recent, parse(where)))


def _delay(text: str, option: str) -> float:
    length = duration(text, option)
    if length > MAX_DELAY:
        raise UsageError(f"{option} {text!r} is out of range. Give at most a year, or a time with --at.")
    return length


@from_settings(
    PublishOptions,
    only=PublishOptions.__struct_fields__,
    delay=Special(parse=_delay),
    deliver_at=Special("--at", parse=future),
    expires_in=Special(parse=time_to_live),
)
@dataclass(frozen=True, kw_only=True)
class SendOptions(Options):
    """The options of a message."""


def send(
    name: StreamName,
    key: Annotated[str, Parameter(help="The message's key: tokens separated by dots, such as orders.us.42.")],
    data: Annotated[
        str,
        Parameter(name="JSON", allow_leading_hyphen=True, help="The data as JSON; - reads it from standard input."),
    ],
    /,
    *,
    headers: Annotated[
        str | None, Parameter(show_default=False, help='The headers: a JSON object such as {"trace": "abc"}.')
    ] = None,
    options: SendOptions = SendOptions(),
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Send one message to a stream.

    To send the lines of a file, see `headrace publish`.
    """
    text = _check_json(sys.stdin.read() if data == "-" else data, "data")
    head = None if headers is None else _check_object(headers)
    if None not in (vars(options)["delay"], vars(options)["deliver_at"]):
        raise UsageError("Give either --delay or --at, not both.")
    chosen = PublishOptions.of(**options.given())
    due = chosen.deliver_at
    check_key(key)
    seq = administer(backend, lambda admin: admin.send(name, key, text, head, **chosen.given()))
    if json:
        print_json({"seq": seq, "deliver_at": due if seq is None else None})
    elif seq is not None:
        print(f"Sent to {name!r} as seq {seq}.")
    elif due is not None:
        print(f"Scheduled for {name!r} at {in_utc(due)}.")
    else:  # a server doesn't return the seq
        unless = ""
        if chosen.unique_key is not None:
            unless = ", unless a message with the unique key is pending"
        elif chosen.message_id is not None:
            unless = ", unless a message with the id was sent before"
        print(f"Sent to {name!r}{unless}.")


def republish(
    name: StreamName,
    target: Annotated[str, Parameter(help="The stream to publish to.")],
    /,
    *,
    selection: RangeSelection = RangeSelection(),  # noqa: B008 - frozen
    dry_run: DryRunOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Publish messages of a stream to another stream.

    They keep their order, keys, data and headers. Without a selection, all
    messages are published.
    """
    criteria = selection.criteria()
    republished = administer(backend, lambda admin: admin.republish(name, target, **criteria, dry_run=dry_run))
    text = f"{'To be republished' if dry_run else 'Republished'} from {name!r} to {target!r}: {count(republished, 'message')}."
    print_result({"republished": republished, "dry_run": dry_run}, json, text)


def erase(
    name: StreamName,
    /,
    *seqs: Annotated[int, Parameter(help="The seqs of the messages.", validator=Number(gte=1))],
    reason: Annotated[str | None, Parameter(show_default=False, help="The reason, as text. It is stored.")] = None,
    yes: YesOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Delete messages for good.

    Their contents and keys are gone from the stream and from dead letters, and
    no consumer gets them any more. The author, the time and the reason stay: see `headrace stream erased`. Backups
    and copies elsewhere stay. The exit code is 1 if a message is not there, or if the answer was no.
    """
    if not seqs:
        raise UsageError("Give the stream and the seqs of messages, such as `orders 17 18`.")
    erased_seqs = administer(backend, lambda admin: _erase(admin, name, seqs, reason, backend.skips_confirmation(yes)))
    if erased_seqs is None:
        return NOT_DONE
    print_result({"erased": erased_seqs}, json, f"Erased from {name!r}: {count(len(erased_seqs), 'message')}.")
    missing = len(set(seqs) - set(erased_seqs))
    if missing:
        print_notice(f"Not found: {count(missing, 'seq')}. There is no such message, or it was erased before.")
    return NOT_DONE if missing else 0


async def _erase(
    admin: Administration, name: str, seqs: Sequence[int], reason: str | None, yes: bool
) -> list[int] | None:
    if not yes:
        await admin.stream(name)
        question = f"Erase {count(len(seqs), 'message')} of {name!r}? The contents can't be brought back."
        if not await confirm(question):
            return None
    return await admin.erase(name, seqs, reason=reason)


def erased(
    name: StreamName,
    /,
    *,
    limit: Annotated[int, Parameter(validator=_LIMIT, help="The number of messages to show.")] = 100,
    above: Annotated[int, Parameter(validator=Number(gte=0), help="Show only messages with a larger seq.")] = 0,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show the erased messages of a stream, with author, time and reason."""
    erasures = administer(backend, lambda admin: admin.erasures(name, above=above, limit=limit))
    print_list(
        erasures,
        json,
        ("seq#", "erased", "by", "reason…"),
        lambda one: (str(one.seq), one.erased_at, one.erased_by, one.reason or "none"),
        empty=f"No message of {name!r} was erased.",
    )


def scheduled(
    name: StreamName,
    /,
    *,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show the messages that a stream publishes later, in the order in which they are due."""
    messages = administer(backend, lambda admin: admin.scheduled_messages(name, limit=limit))
    print_list(
        messages,
        json,
        ("id#", "due", "key", "unique key", "data…"),
        lambda one: (str(one.id), in_utc(one.deliver_at), one.key, one.unique_key or "", one_line_json(one.data)),
        empty=f"No message of {name!r} is scheduled.",
    )


def _check_json(text: str, what: str) -> str:
    """Return the text if it is valid JSON. Raises `InvalidData`, which says what valid input looks like."""
    try:
        return payloads.encode(msgspec.json.decode(text.encode(), type=msgspec.Raw))
    except UnicodeEncodeError:
        raise InvalidData(f"The {what} is not UTF-8: {text[:80]!r}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidData(f"The {what} {text[:80]!r} is not JSON: {error}.{_advice(text)}") from error


def _advice(text: str) -> str:
    """Return advice for a JSON string whose quotes the shell has removed."""
    word = text if text.isalnum() and len(text) <= 20 else "text"
    return "" if text.lstrip()[:1] in tuple('{["') else f" Quote a string for JSON and for the shell: '\"{word}\"'."


def _check_object(text: str) -> str:
    checked = _check_json(text, "value of --headers")
    if not checked.lstrip().startswith("{"):
        raise InvalidData(
            f'The value of --headers must be a JSON object, such as {{"trace": "abc"}}, not {text[:80]!r}.'
        )
    return checked
