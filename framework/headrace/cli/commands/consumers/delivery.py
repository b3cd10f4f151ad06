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

from headrace.cli.options.backend import Backend
from headrace.cli.options.common import JsonOption, LimitOption, flag, print_json
from headrace.cli.options.connection import administer
from headrace.cli.options.consumer_lookup import ConsumerWords, which
from headrace.cli.options.times import duration, in_utc, told
from headrace.cli.output.notices import NOT_DONE, count, hint, say
from headrace.cli.output.tables import compact, number, print_table
from headrace.cli.problems import UsageProblem
from headrace.model.records import BlockedKey, PeekedMessage, Received

if TYPE_CHECKING:
    from headrace.client import Administration

_ACK_ID = re.compile(r"[A-Za-z0-9_-]{48}")

AckWords = Annotated[
    str,
    Parameter(
        name="[STREAM] NAME ID...",
        required=True,
        help="The consumer, by its name alone where only one stream has such, and the ack ids that `receive` printed.",
    ),
]


def peek(
    *consumer: ConsumerWords,
    limit: LimitOption = 10,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show the messages that are in flight, parked, blocked and next, without changing anything."""
    found = administer(backend, _peek, consumer, limit)
    if json:
        print_json(found)
    elif not found:
        say("Nothing is in flight, and nothing to come.")
    else:
        print_table(
            ("state", "seq#", "key", "attempts#", "until", "owner", "data…"),
            ((m.state.replace("_", " "), str(m.seq), m.key, number(m.attempts), told(m.until), str(m.owner or "–"),
              compact(m.data)) for m in found),
        )  # fmt: skip


async def _peek(admin: Administration, words: tuple[str, ...], limit: int) -> list[PeekedMessage]:
    return await admin.peek(*await which(admin, words), limit=limit)


def receive(
    *consumer: ConsumerWords,
    batch_size: Annotated[
        int, Parameter(validator=Number(gte=1, lte=1000), help="At most so many, of which no two are of one key.")
    ] = 1,
    wait: Annotated[str, Parameter(help="How long to wait for the first, such as 5s.")] = "0s",
    ack: Annotated[bool, flag("Ack them once they are printed.")] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Receive messages by hand.

    They are leased for the consumer's ack wait, or until they are acked or
    nacked. The exit code is 1 if there were none.
    """
    if ack:
        backend.one_request("leave --ack out, and ack by `headrace consumer ack`")
    stream, name, received = administer(backend, _receive, consumer, batch_size, duration(wait, "--wait"), ack, json)
    if not received:
        if not json:
            say(f"There is nothing to receive for {name!r} of {stream!r}.")
        return NOT_DONE
    if not ack:
        hint(f"Done with it? `headrace consumer ack {stream} {name} {received[0].ack_id}`")
    return 0


async def _receive(
    admin: Administration, words: tuple[str, ...], batch_size: int, wait: float, ack: bool, json: bool
) -> tuple[str, str, list[Received]]:
    stream, name = await which(admin, words)
    received = await admin.receive(stream, name, limit=batch_size, wait=wait)
    _print_received(received, json)
    sys.stdout.flush()  # messages that could not be printed must not be acked
    if ack and received:
        stale = await admin.ack(stream, name, [one.ack_id for one in received])
        _say_stale(stale)
    return stream, name, received


def _print_received(received: list[Received], json: bool) -> None:
    if json:
        print_json(received)
    elif received:
        print_table(
            ("ack id", "seq#", "attempt#", "key", "data…"),
            ((one.ack_id, str(one.seq), number(one.attempt), one.key, compact(one.data)) for one in received),
        )


def ack(
    *words: AckWords,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Acknowledge received messages.

    The exit code is 1 if it was too late for any of them.
    """
    names, ids = _names_and_ids(words)
    stale = administer(backend, _ack, names, ids)
    return _tell_settled("acked", ids, stale, json)


async def _ack(admin: Administration, names: Sequence[str], ids: list[str]) -> list[str]:
    return await admin.ack(*await which(admin, names), ids)


def nack(
    *words: AckWords,
    delay: Annotated[str | None, Parameter(show_default=False, help="Have them again only after so long.")] = None,
    error: Annotated[str | None, Parameter(show_default=False, help="What went wrong, in words.")] = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Return received messages, to be delivered again.

    The exit code is 1 if it was too late for any of them.
    """
    names, ids = _names_and_ids(words)
    stale = administer(backend, _nack, names, ids, None if delay is None else duration(delay, "--delay"), error)
    return _tell_settled("nacked", ids, stale, json)


async def _nack(
    admin: Administration, names: Sequence[str], ids: list[str], delay: float | None, error: str | None
) -> list[str]:
    return await admin.nack(*await which(admin, names), ids, delay=delay, error=error)


def blocked(
    *consumer: ConsumerWords,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List the blocked keys.

    A message of each of these keys is exhausted, and the consumer's setting is
    to block its key. To unblock a key, redrive or purge its dead letter.
    """
    found = administer(backend, _blocked, consumer, limit)
    if json:
        print_json(found)
    elif not found:
        say("No key is blocked.")
    else:
        print_table(
            ("key", "dead letter#", "since", "waiting#", "error…"),
            ((b.key, str(b.seq), in_utc(b.since), number(b.waiting), b.error or "") for b in found),
        )


async def _blocked(admin: Administration, words: tuple[str, ...], limit: int) -> list[BlockedKey]:
    return await admin.blocked_keys(*await which(admin, words), limit=limit)


def _names_and_ids(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into the consumer's words and the ack ids. The stream is optional, so the ids
    start at the first ack id.
    """
    begin = next((place for place, word in enumerate(words) if place and _ACK_ID.fullmatch(word)), len(words))
    names, ids = list(words[:begin]), list(words[begin:])
    if not ids or len(names) > 2:
        raise UsageProblem(
            "Write the consumer and then the ack ids that `headrace consumer receive` printed: `orders ship ID ID`."
        )
    return names, ids


def _tell_settled(done: str, ids: list[str], stale: list[str], json: bool) -> int:
    settled = [one for one in ids if one not in set(stale)]
    if json:
        print_json({done: settled, "stale": stale})
    elif settled:
        print(f"{done.capitalize()} {count(len(settled), 'message')}.")
    _say_stale(stale)
    return NOT_DONE if stale else 0


def _say_stale(stale: list[str]) -> None:
    if stale:
        say(f"Too late for {', '.join(stale)}: the lease had ended, so it may be in work elsewhere, or done already.")
