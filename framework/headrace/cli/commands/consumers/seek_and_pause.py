"""`headrace consumer seek|replay|pause|resume`: move and pause consumers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from headrace.cli.commands.consumers.consumers import pause_end
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.consumer_lookup import ConsumerArguments, administer_consumer
from headrace.cli.errors import UsageError
from headrace.cli.options.common import JsonOption
from headrace.cli.options.selection import DryRunOption, RangeSelection
from headrace.cli.options.times import Place, after, future, parse_place
from headrace.cli.output.formats import number_or_dash
from headrace.cli.output.results import print_result
from headrace.model.text.counting import count
from headrace.model.watching.operations import SeekPreview

if TYPE_CHECKING:
    from headrace.client import Administration

SeekArguments = Annotated[
    str,
    Parameter(
        name="[STREAM] NAME TO",
        required=True,
        help="The consumer, and start, end, a seq, a time, or a duration such as 1h for an hour ago. You can leave out the"
        " stream if only one has a consumer of that name.",
    ),
]


def seek(
    *words: SeekArguments,
    dry_run: DryRunOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Move a consumer back or forward.

    It reads on at the first message at or after the new position. Leases with
    messages after it end: acks for them have no effect, and the messages are
    delivered again. After a move back, messages that wait before the new position
    are still delivered. A move forward passes over them. --dry-run says how many
    messages would be delivered again, and how many would be passed over.
    """
    if len(words) < 2:
        raise UsageError(
            "Give the consumer and the new position: start, end, a seq, a time, or a duration such as 1h for an hour ago."
        )
    to = parse_place(words[-1], "TO")
    if dry_run:
        stream, name, preview = administer_consumer(backend, words[:-1], _preview, to)
        shown = msgspec.to_builtins(preview) | {"stream": stream, "consumer": name, "dry_run": True}
        print_result(
            shown, json, f"{name!r} of {stream!r} would continue after seq {preview.after}.", _effects(preview)
        )
        return
    stream, name, position = administer_consumer(backend, words[:-1], _seek, to)
    text = f"{name!r} of {stream!r} continues after seq {position}."
    print_result({"stream": stream, "consumer": name, "position": position}, json, text)


async def _seek(admin: Administration, stream: str, name: str, to: Place) -> tuple[str, str, int]:
    return stream, name, await admin.seek(stream, name, to)


async def _preview(admin: Administration, stream: str, name: str, to: Place) -> tuple[str, str, SeekPreview]:
    return stream, name, await admin.seek_preview(stream, name, to)


def _effects(preview: SeekPreview) -> list[tuple[str, str]]:
    """Return what a seek would do."""
    return [
        ("position now", number_or_dash(preview.before)),
        ("delivered again", f"{'' if preview.again_exact else 'about '}{count(preview.again, 'message')}"),
        ("passed over", f"{'' if preview.skipped_exact else 'about '}{count(preview.skipped, 'message')}"),
        ("leases that end", f"of {count(preview.in_flight, 'message')} in flight"),
    ]


def replay(
    *consumer: ConsumerArguments,
    selection: RangeSelection = RangeSelection(),  # noqa: B008 - frozen
    dry_run: DryRunOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Deliver messages to a consumer again.

    They are delivered before any new message, and the consumer's position
    doesn't change. Without a selection, all messages that it has handled are
    delivered. Messages in flight are delivered again after earlier ones of their
    key. To publish messages to another stream, see
    `headrace stream republish`.
    """
    criteria = selection.criteria()
    replayed = administer_consumer(
        backend, consumer, lambda admin, stream, name: admin.replay(stream, name, **criteria, dry_run=dry_run)
    )
    text = f"{'To be replayed' if dry_run else 'Replayed'}: {count(replayed, 'message')}."
    print_result({"replayed": replayed, "dry_run": dry_run}, json, text)


def pause(
    *consumer: ConsumerArguments,
    until: Annotated[str | None, Parameter(show_default=False, help="Resume automatically at this time.")] = None,
    length: Annotated[
        str | None,
        Parameter(name="--for", show_default=False, help="Resume automatically after this duration, such as 10m."),
    ] = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Pause delivery to a consumer.

    Without an end, it is paused until `headrace consumer resume`. Messages in
    flight are not affected.
    """
    if until is not None and length is not None:
        raise UsageError("Give either --until or --for, not both.")
    end = after(length, "--for") if length is not None else future(until, "--until") if until is not None else None
    stream, name = administer_consumer(backend, consumer, _pause, end)
    text = f"{name!r} of {stream!r} is paused {pause_end(end)}."
    print_result({"stream": stream, "consumer": name, "paused": True, "paused_until": end}, json, text)


async def _pause(admin: Administration, stream: str, name: str, end: datetime | None) -> tuple[str, str]:
    await admin.pause(stream, name, end)
    return stream, name
