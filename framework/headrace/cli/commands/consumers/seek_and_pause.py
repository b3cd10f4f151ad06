"""`headrace consumer seek|replay|pause|resume`: move and pause consumers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.commands.consumers.consumers import until as told_until
from headrace.cli.options.backend import Backend
from headrace.cli.options.common import JsonOption, print_json
from headrace.cli.options.connection import administer
from headrace.cli.options.consumer_lookup import ConsumerWords, which
from headrace.cli.options.selection import Between, DryRunOption
from headrace.cli.options.times import Place, after, future, place
from headrace.cli.output.notices import count
from headrace.cli.problems import UsageProblem

if TYPE_CHECKING:
    from headrace.client import Administration

SeekWords = Annotated[
    str,
    Parameter(
        name="[STREAM] NAME TO",
        required=True,
        help="The consumer, by its name alone where only one stream has such; and start, end, a seq, a time, or how long"
        " ago, such as 1h.",
    ),
]


def seek(
    *words: SeekWords,
    dry_run: DryRunOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Move a consumer back or forward.

    The next message is the first one at or after the place. Messages in flight
    are forgotten. They are delivered again if they lie ahead, and an ack for
    them has no effect.
    """
    if len(words) < 2:
        raise UsageProblem("Write the consumer and where to: start, end, a seq, a time, or how long ago, such as 1h.")
    to = place(words[-1], "TO")
    if dry_run:
        backend.one_request("leave --dry-run out")
        stream, name, found = administer(backend, _ahead, words[:-1], to)
        if json:
            print_json({"stream": stream, "consumer": name, "ahead": found, "dry_run": True})
        else:
            print(f"{name!r} of {stream!r} would have {count(found, 'message')} ahead.")
        return
    stream, name, position = administer(backend, _seek, words[:-1], to)
    if json:
        print_json({"stream": stream, "consumer": name, "position": position})
    else:
        print(f"{name!r} of {stream!r} goes on with the first message after seq {position}.")


async def _seek(admin: Administration, words: tuple[str, ...], to: Place) -> tuple[str, str, int]:
    stream, name = await which(admin, words)
    return stream, name, await admin.seek(stream, name, to)


async def _ahead(admin: Administration, words: tuple[str, ...], to: Place) -> tuple[str, str, int]:
    """How many messages from a place on match the consumer's filter and condition."""
    stream, name = await which(admin, words)
    settings = (await admin.consumer(stream, name)).settings
    if to == "end":
        return stream, name, 0
    return (
        stream,
        name,
        await admin.republish(
            stream,
            stream,
            filter=settings["filters"],
            where=settings["where"],
            start_seq=to if isinstance(to, int) else None,
            start_time=to if isinstance(to, datetime) else None,
            dry_run=True,
        ),
    )


def replay(
    *consumer: ConsumerWords,
    between: Between = Between(),  # noqa: B008 - frozen
    dry_run: DryRunOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Deliver messages to a consumer again.

    They are delivered before any new message, and the consumer's position
    doesn't change. Without a selection, all messages that it has handled are
    delivered. To publish messages to another stream, see
    `headrace stream republish`.
    """
    found = administer(backend, _replay, consumer, between, dry_run)
    if json:
        print_json({"replayed": found, "dry_run": dry_run})
    else:
        print(f"{'Would replay' if dry_run else 'Replays'} {count(found, 'message')}.")


async def _replay(admin: Administration, words: tuple[str, ...], between: Between, dry_run: bool) -> int:
    return await admin.replay(*await which(admin, words), **between.criteria(), dry_run=dry_run)


def pause(
    *consumer: ConsumerWords,
    until: Annotated[str | None, Parameter(show_default=False, help="Resume by itself at this time.")] = None,
    length: Annotated[
        str | None, Parameter(name="--for", show_default=False, help="Resume by itself after so long, such as 10m.")
    ] = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Pause delivery to a consumer.

    Without an end, it is paused until `headrace consumer resume`. Messages in
    flight are not affected.
    """
    if until is not None and length is not None:
        raise UsageProblem("Give --until or --for, and not both.")
    end = after(length, "--for") if length is not None else future(until, "--until") if until is not None else None
    stream, name = administer(backend, _pause, consumer, end)
    if json:
        print_json({"stream": stream, "consumer": name, "paused": True, "paused_until": end})
    else:
        print(f"{name!r} of {stream!r} is paused {told_until(end)}.")


async def _pause(admin: Administration, words: tuple[str, ...], end: datetime | None) -> tuple[str, str]:
    stream, name = await which(admin, words)
    await admin.pause(stream, name, end)
    return stream, name


def resume(
    *consumer: ConsumerWords,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Resume delivery to a paused consumer."""
    stream, name = administer(backend, _resume, consumer)
    if json:
        print_json({"stream": stream, "consumer": name, "paused": False})
    else:
        print(f"{name!r} of {stream!r} is not paused any more.")


async def _resume(admin: Administration, words: tuple[str, ...]) -> tuple[str, str]:
    stream, name = await which(admin, words)
    await admin.resume(stream, name)
    return stream, name
