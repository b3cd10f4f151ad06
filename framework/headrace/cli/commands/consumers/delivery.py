"""`headrace consumer peek|receive|ack|nack|blocked`: show a consumer's messages, and receive and settle
them by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.consumer_lookup import ConsumerArguments, administer_consumer
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import MOST, JsonOption, LimitOption, above, flag
from headrace.cli.options.times import duration
from headrace.cli.output.formats import last_error, number_or_dash, one_line_data
from headrace.cli.output.json_output import print_json
from headrace.cli.output.results import print_list, print_next_page
from headrace.cli.output.stderr import print_hint, print_notice
from headrace.cli.output.tables import print_table
from headrace.model.records import Received
from headrace.model.text.counting import count

if TYPE_CHECKING:
    from headrace.client import Administration

_ACK_ID = re.compile(r"[A-Za-z0-9_-]{48}")

AckArguments = Annotated[
    str,
    Parameter(
        name="[STREAM] NAME ID...",
        required=True,
        help="The consumer, and the ack ids that `receive` printed. You can leave out the stream if only one has a consumer of that name.",
    ),
]


def peek(
    *consumer: ConsumerArguments,
    above: Annotated[int, above("messages", "seq")] = 0,
    limit: Annotated[
        int,
        Parameter(
            name="--limit", validator=Number(gte=1, lte=MOST), help="The maximum number of messages of each state."
        ),
    ] = 10,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show a consumer's messages that are in flight, parked, blocked and next.

    A message that waits for a retry, or that blocks its key, is shown with its last
    error instead of its data. Nothing is changed.
    """
    messages = administer_consumer(
        backend, consumer, lambda admin, stream, name: admin.peek(stream, name, limit=limit, above=above)
    )
    print_list(
        messages,
        json,
        ("state", "seq#", "key", "attempts#", "until", "owner", "error or data…"),
        lambda m: (
            m.state.replace("_", " "),
            str(m.seq),
            m.key,
            m.attempts,
            m.until,
            m.owner,
            last_error(m) or one_line_data(m),
        ),
        empty="No messages are in flight, parked, blocked or next.",
    )


def receive(
    *consumer: ConsumerArguments,
    batch_size: Annotated[
        int,
        Parameter(validator=Number(gte=1, lte=1000), help="The maximum number of messages. Each has a different key."),
    ] = 1,
    wait: Annotated[str, Parameter(help="How long to wait for the first message, such as 5s.")] = "0s",
    ack: Annotated[bool, flag("Ack the messages after they are printed.")] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Receive messages by hand.

    They are leased for the consumer's ack wait, or until they are acked or
    nacked. The exit code is 1 if there were none.
    """
    if ack:
        backend.require_single_request("leave out --ack, and use `headrace consumer ack`")
    stream, name, received = administer_consumer(
        backend, consumer, _receive, batch_size, duration(wait, "--wait"), ack, json
    )
    if not received:
        if not json:
            print_notice(f"The consumer {name!r} of {stream!r} has no messages to receive now.")
        return NOT_DONE
    if not ack:
        print_hint(f"To ack it: `headrace consumer ack {stream} {name} {received[0].ack_id}`")
    return 0


async def _receive(
    admin: Administration, stream: str, name: str, batch_size: int, wait: float, ack: bool, json: bool
) -> tuple[str, str, list[Received]]:
    received = await admin.receive(stream, name, limit=batch_size, wait=wait)
    _print_received(received, json)
    sys.stdout.flush()  # messages that could not be printed must not be acked
    if ack and received:
        stale = await admin.ack(stream, name, [one.ack_id for one in received])
        _print_stale(stale)
    return stream, name, received


def _print_received(received: list[Received], json: bool) -> None:
    if json:
        print_json(received)
    elif received:
        print_table(
            ("ack id", "seq#", "attempt#", "key", "data…"),
            ((one.ack_id, str(one.seq), number_or_dash(one.attempt), one.key, one_line_data(one)) for one in received),
        )


def ack(
    *words: AckArguments,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Acknowledge received messages.

    The exit code is 1 if it was too late for any of them.
    """
    names, ids = _names_and_ids(words)
    stale = administer_consumer(backend, names, lambda admin, stream, name: admin.ack(stream, name, ids))
    return _report_settled("acked", ids, stale, json)


def nack(
    *words: AckArguments,
    delay: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="The delay before the messages are delivered again. Default: the consumer's backoff.",
        ),
    ] = None,
    error: Annotated[str | None, Parameter(show_default=False, help="The error, as text.")] = None,
    snooze: Annotated[bool, flag("Don't count the attempt, because nothing has failed. It needs --delay.")] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Return received messages, to be delivered again.

    The exit code is 1 if it was too late for any of them.
    """
    names, ids = _names_and_ids(words)
    wait = None if delay is None else duration(delay, "--delay")
    stale = administer_consumer(
        backend,
        names,
        lambda admin, stream, name: admin.nack(stream, name, ids, delay=wait, error=error, snooze=snooze),
    )
    return _report_settled("nacked", ids, stale, json)


def blocked(
    *consumer: ConsumerArguments,
    above: Annotated[int, above("keys whose dead letter has", "seq")] = 0,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List the blocked keys.

    A key is blocked when one of its messages is exhausted and the consumer's
    setting is to block the key. To unblock a key, redrive or purge its dead letter.
    """
    keys = administer_consumer(
        backend, consumer, lambda admin, stream, name: admin.blocked_keys(stream, name, limit=limit, above=above)
    )
    print_list(
        keys,
        json,
        ("key", "dead letter#", "since", "waiting#", "type", "error…"),
        lambda b: (b.key, str(b.seq), b.since, b.waiting, b.error_type, b.error or ""),
        empty="No key is blocked.",
    )
    print_next_page(keys, limit, lambda blocked: blocked.seq)


def _names_and_ids(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into the consumer and the ack ids.

    The stream is optional, so the ids start at the first argument that looks like one.
    """
    start = next((index for index, word in enumerate(words) if index and _ACK_ID.fullmatch(word)), len(words))
    names, ids = list(words[:start]), list(words[start:])
    if not ids or len(names) > 2:
        raise UsageError(
            "Give the consumer and then the ack ids that `headrace consumer receive` printed, such as `orders ship ID ID`."
        )
    return names, ids


def _report_settled(outcome: str, ids: list[str], stale: list[str], json: bool) -> int:
    settled = [one for one in ids if one not in set(stale)]
    if json:
        print_json({outcome: settled, "stale": stale})
    elif settled:
        print(f"{outcome.capitalize()}: {count(len(settled), 'message')}.")
    _print_stale(stale)
    return NOT_DONE if stale else 0


def _print_stale(stale: list[str]) -> None:
    if stale:
        print_notice(f"Too late: {', '.join(stale)}. The lease has expired, and the message may be delivered again.")
