"""`headrace consumer add|ls|info|edit|rm`: create, show, change and delete consumers."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.connection.consumer_lookup import ConsumerArguments, administer_consumer
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import JsonOption, YesOption, flag
from headrace.cli.options.push import PushOptions, shown
from headrace.cli.options.settings import Beginning, ConsumerSettings
from headrace.cli.options.times import ago, in_utc, lasting
from headrace.cli.output.formats import number_or_dash
from headrace.cli.output.results import print_list, print_result
from headrace.cli.output.stderr import confirm
from headrace.model.conditions import parse
from headrace.model.errors import HeadraceError
from headrace.model.push import Push
from headrace.model.records import ConsumerInfo
from headrace.model.specs import ConsumerSpec
from headrace.model.text.counting import count

if TYPE_CHECKING:
    from headrace.client import Administration

_DURATIONS = frozenset({"ack_wait", "base", "limit", "delays"})


def add(
    stream: Annotated[str, Parameter(help="The stream to read.")],
    name: Annotated[str, Parameter(help="The consumer's name.")],
    /,
    *,
    settings: ConsumerSettings = ConsumerSettings(),  # noqa: B008 - frozen
    pushing: PushOptions = PushOptions(),  # noqa: B008 - frozen
    beginning: Beginning = Beginning(),  # noqa: B008 - frozen
    defaults: Annotated[bool, flag("Use defaults for all other settings. This is always so.")] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Create a consumer on a stream.

    A consumer that exists with the same settings is left unchanged, and keeps
    its position.
    """
    given = settings.given() | beginning.given()
    if given.get("where") is not None:
        given["where"] = parse(given["where"])
    push = pushing.given()
    if push:
        if "url" not in push:
            raise UsageError("A push consumer needs a URL. Give --push-url, or leave out the other --push options.")
        given["push"] = Push(**push)
    new, created = administer(backend, _add, ConsumerSpec(stream=stream, name=name, **given))
    result = "Created the" if new else "Unchanged: the"
    print_result(created, json, f"{result} consumer {name!r} of {stream!r}. Pending: {_pending(created)}.")


async def _add(admin: Administration, spec: ConsumerSpec) -> tuple[bool, ConsumerInfo]:
    """Create the consumer. Returns whether it is new (False if it existed with the same settings), and its info."""
    new = await admin.create_consumer(spec)
    return new, await admin.consumer(spec.stream, spec.name)


def ls(
    stream: Annotated[str | None, Parameter(help="List only the consumers of this stream.", show_default=False)] = None,
    /,
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List the consumers of one stream or of all streams.

    A worker is a process that works on the consumer, or holds messages of it.
    """
    consumers, serving = administer(backend, _ls, stream, json or backend.as_curl)

    def row(c: ConsumerInfo) -> tuple[object, ...]:
        workers = max(c.owners or 0, serving[c.stream, c.name])
        return c.stream, c.name, c.lag, c.num_ack_pending, c.parked, c.blocked, c.dead_letters, workers, _state(c)

    print_list(
        consumers,
        json,
        ("stream", "consumer", "lag#", "in flight#", "parked#", "blocked#", "dead#", "workers#", "state"),
        row,
        empty="There are no consumers. Create one with `headrace consumer add`, or declare it in an app.",
    )


async def _ls(
    admin: Administration, stream: str | None, only_consumers: bool
) -> tuple[list[ConsumerInfo], Counter[tuple[str, str]]]:
    """Return the consumers, and how many processes work on each, idle ones, too.

    A token for some streams, or a database role without the right to see processes, gets no such numbers.
    """
    consumers = await admin.consumers(stream)
    if only_consumers:
        return consumers, Counter()
    try:
        processes = await admin.processes()
    except HeadraceError:
        return consumers, Counter()
    return consumers, Counter(
        (one.stream, one.name) for process in processes if not process.gone for one in process.consumers
    )


def info(
    *consumer: ConsumerArguments,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show one consumer: its position, its messages in flight, why it is behind, and its settings."""
    state, why = administer_consumer(backend, consumer, _info, json)
    print_result(state, json, pairs=[*_facts(state), *([("why", why)] if why else []), *_settings(state)])


async def _info(admin: Administration, stream: str, name: str, json: bool) -> tuple[ConsumerInfo, str]:
    """Return a consumer, and why it is behind. As JSON that is an answer of its own, `consumer why`."""
    return await admin.consumer(stream, name), "" if json else (await admin.why(stream, name)).text


def edit(
    *consumer: ConsumerArguments,
    settings: ConsumerSettings = ConsumerSettings(),  # noqa: B008 - frozen
    pushing: PushOptions = PushOptions(),  # noqa: B008 - frozen
    no_push: Annotated[bool, flag("Make it a normal consumer that sends no messages to an endpoint.")] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Change settings of a consumer while it is running.

    Settings that you don't give stay unchanged. To move the consumer, see
    `headrace consumer seek`.
    """
    changes, push = settings.given(), pushing.given()
    if push and no_push:
        raise UsageError("Give either --no-push or other --push options, not both.")
    if push or no_push:
        changes["push"] = push or None
    if not changes:
        raise UsageError("There is nothing to change. Give a setting, such as --ack-wait 1m.")
    changed = administer_consumer(backend, consumer, _edit, changes)
    pairs = ((name, value) for name, value in _settings(changed) if name in changes)
    print_result(changed, json, f"Changed the consumer {changed.name!r} of {changed.stream!r}.", pairs)


async def _edit(admin: Administration, stream: str, name: str, changes: dict[str, Any]) -> ConsumerInfo:
    await admin.edit_consumer(stream, name, **changes)
    return await admin.consumer(stream, name)


def rm(
    *consumer: ConsumerArguments,
    yes: YesOption = False,
    force: Annotated[bool, flag("Delete the consumer even while it has messages in flight.")] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Delete a consumer.

    Its position in the stream, its parked messages and its dead letters are
    deleted, too.
    """
    deleted = administer_consumer(backend, consumer, _rm, backend.skips_confirmation(yes), force)
    if deleted is None:
        return NOT_DONE
    stream, name = deleted
    print_result({"deleted": name, "stream": stream}, json, f"Deleted the consumer {name!r} of {stream!r}.")
    return 0


async def _rm(admin: Administration, stream: str, name: str, yes: bool, force: bool) -> tuple[str, str] | None:
    if not yes and not await confirm(_question(await admin.consumer(stream, name))):
        return None
    await admin.delete_consumer(stream, name, force=force)
    return stream, name


def _question(consumer: ConsumerInfo) -> str:
    dead = f" and its {count(consumer.dead_letters, 'dead letter')}" if consumer.dead_letters else ""
    return f"Delete the consumer {consumer.name!r} of {consumer.stream!r}{dead}?"


def _facts(consumer: ConsumerInfo) -> list[tuple[str, str]]:
    """Return the state of a consumer, without the rows that don't apply."""
    facts = [
        ("consumer", f"{consumer.name} of {consumer.stream}"),
        (
            "position",
            f"{number_or_dash(consumer.position)} (lag {number_or_dash(consumer.lag)}, last seq {number_or_dash(consumer.last_seq)})",
        ),
        ("pending", _pending(consumer)),
        ("in flight", f"{number_or_dash(consumer.num_ack_pending)} with {count(consumer.owners, 'worker')}"),
        ("parked", number_or_dash(consumer.parked)),
        ("blocked", number_or_dash(consumer.blocked)),
        ("dead letters", number_or_dash(consumer.dead_letters)),
        ("holes", number_or_dash(consumer.holes)),
    ]
    if consumer.paused_until is not None:
        facts.insert(1, ("paused", pause_end(consumer.paused_until)))
    if consumer.replaying:
        facts.append(("replaying", f"{number_or_dash(consumer.replaying)} remaining"))
    if consumer.oldest_unacked_at is not None:
        facts.append(("oldest unacked", f"{in_utc(consumer.oldest_unacked_at)} ({ago(consumer.oldest_unacked_at)})"))
    if consumer.missed:
        facts.append(
            ("missed", f"{number_or_dash(consumer.missed)}, removed before they were delivered{_last_gap(consumer)}")
        )
    return facts


def _last_gap(consumer: ConsumerInfo) -> str:
    if consumer.last_gap is None:
        return ""
    lower, upper, at = consumer.last_gap
    return f", the last at {in_utc(at)}: seqs {number_or_dash(lower)} to {number_or_dash(upper - 1)}"


def _settings(consumer: ConsumerInfo) -> list[tuple[str, str]]:
    return [
        (name, _setting(name, value))
        for name, value in consumer.settings.items()
        if name not in ("stream", "name", "version") and value is not None
    ]


def _setting(name: str, value: Any) -> str:
    if name == "push":
        return shown(value)
    if isinstance(value, dict):
        return ", ".join(f"{inner} {_setting(inner, inner_value)}" for inner, inner_value in value.items()) or "default"
    if isinstance(value, (list, tuple)):
        return ", ".join(_setting(name, one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return lasting(value) if name in _DURATIONS else str(value)


def _pending(consumer: ConsumerInfo) -> str:
    prefix = "" if consumer.num_pending_exact else "at least "
    return f"{prefix}{count(consumer.num_pending, 'message')}"


def _state(consumer: ConsumerInfo) -> str:
    if consumer.paused_until is not None:
        return f"paused {pause_end(consumer.paused_until)}"
    if consumer.replaying:
        return "replaying"
    return "push" if consumer.settings.get("push") else ""


def pause_end(moment: datetime | None) -> str:
    """Format the end of a pause. Without a time, or with Postgres's infinity, it is "until resumed"."""
    return "until resumed" if moment is None or moment.year >= 9999 else f"until {in_utc(moment)}"
