"""`headrace stream add|ls|info|edit|rm`: create, show, change and delete streams. For their messages
see `messages.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import JsonOption, YesOption, flag
from headrace.cli.options.settings import StreamSettings
from headrace.cli.options.times import lasting, time_or_dash
from headrace.cli.output.formats import number_or_dash
from headrace.cli.output.results import print_list, print_result
from headrace.cli.output.stderr import confirm
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.specs import StreamSpec
from headrace.model.text.counting import count
from headrace.model.text.sizes import format_size

if TYPE_CHECKING:
    from headrace.client import Administration

StreamName = Annotated[str, Parameter(help="The stream's name.")]


def add(
    name: StreamName,
    /,
    *,
    into: Annotated[
        str | None,
        Parameter(
            name="--in",
            show_default=False,
            help="The further database of the server in which it is created, see `headrace database`. Default: the server's own.",
        ),
    ] = None,
    settings: StreamSettings = StreamSettings(),  # noqa: B008 - frozen
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Create a stream.

    Without a limit it keeps all messages. A stream that exists with the same
    settings is left unchanged.
    """
    new, created = administer(backend, _add, StreamSpec(name=name, **settings.given()), into)
    text = f"{'Created the stream' if new else 'Unchanged: the stream'} {name!r}. Retention: {_policy(created)}."
    print_result(created, json, text)


async def _add(admin: Administration, spec: StreamSpec, database: str | None) -> tuple[bool, StreamInfo]:
    """Create the stream. Returns whether it is new (False if it existed with the same settings), and its info."""
    new = await admin.create_stream(spec, database=database)
    return new, await admin.stream(spec.name)


def ls(
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List all streams."""
    streams = administer(backend, lambda admin: admin.streams())
    print_list(
        streams,
        json,
        ("stream", "messages#", "first#", "last#", "size#", "consumers#", "keeps"),
        lambda s: (s.name, s.messages, s.first_seq, s.last_seq, format_size(s.size), s.consumers, _policy(s)),
        empty="There are no streams. Create one with `headrace stream add`, or declare it in an app.",
    )


def info(
    name: StreamName,
    /,
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show one stream: its settings, its retention and its consumers."""
    state, consumers = administer(backend, _info, name)
    print_result({"stream": state, "consumers": consumers}, json, pairs=_facts(state, consumers))


async def _info(admin: Administration, name: str) -> tuple[StreamInfo, list[ConsumerInfo]]:
    return await admin.stream(name), await admin.consumers(name)


def edit(
    name: StreamName,
    /,
    *,
    settings: StreamSettings = StreamSettings(),  # noqa: B008 - frozen
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Change settings of a stream.

    Settings that you don't give stay unchanged.
    """
    changes = settings.given()
    if not changes:
        raise UsageError("There is nothing to change. Give a setting, such as --retain-up-to 7d.")
    changed = administer(backend, _edit, name, changes)
    print_result(changed, json, f"Changed the stream {name!r}. Retention: {_policy(changed)}.")


async def _edit(admin: Administration, name: str, changes: dict[str, object]) -> StreamInfo:
    await admin.edit_stream(name, **changes)
    return await admin.stream(name)


def rm(
    name: StreamName,
    /,
    *,
    yes: YesOption = False,
    force: Annotated[
        bool, flag("Delete the stream even while its consumers have messages in flight, or a webhook fills it.")
    ] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Delete a stream and all its messages."""
    if not administer(backend, _rm, name, backend.skips_confirmation(yes), force):
        return NOT_DONE
    print_result({"deleted": name}, json, f"Deleted the stream {name!r}.")
    return 0


async def _rm(admin: Administration, name: str, yes: bool, force: bool) -> bool:
    if not yes and not await confirm(_question(await admin.stream(name))):
        return False
    await admin.delete_stream(name, force=force)
    return True


def _question(stream: StreamInfo) -> str:
    consumers = f" and {count(stream.consumers, 'consumer')}" if stream.consumers else ""
    return f"Delete the stream {stream.name!r} with {count(stream.messages, 'message')}{consumers}?"


def _facts(stream: StreamInfo, consumers: list[ConsumerInfo]) -> list[tuple[str, str]]:
    facts = [
        ("stream", stream.name),
        *([("database", stream.database)] if stream.database else []),
        ("created", time_or_dash(stream.created_at)),
        ("messages", number_or_dash(stream.messages)),
        ("seqs", f"{number_or_dash(stream.first_seq)} to {number_or_dash(stream.last_seq)}"),
        ("size", format_size(stream.size)),
        ("keeps", _policy(stream)),
    ]
    if stream.segments:
        facts.append(("segments", number_or_dash(stream.segments)))
    if stream.full:
        facts.append(("full", "publishing fails until there is room"))
    if stream.scheduled:
        facts.append(
            ("scheduled", f"{number_or_dash(stream.scheduled)}, the next at {time_or_dash(stream.next_scheduled)}")
        )
    facts.append(("message ids", f"remembered for {lasting(stream.dedupe_window)}"))
    if stream.index_keys:
        facts.append(("keys", "indexed"))
    return [
        *facts,
        ("consumers", ", ".join(f"{one.name} (lag {number_or_dash(one.lag)})" for one in consumers) or "none"),
    ]


def _policy(stream: StreamInfo) -> str:
    """Describe the stream's retention: `up to 7d, up to 10 GB`."""
    words = []
    if stream.one_message_per_key:
        words.append("the latest message of each key")
    if stream.retention == "interest":
        words.append("until all consumers are done")
    if stream.retain_up_to is not None:
        words.append(f"up to {lasting(stream.retain_up_to)}")
    if stream.max_storage is not None:
        words.append(f"up to {format_size(stream.max_storage)}")
    if stream.retain_at_least is not None:
        words.append(f"at least {lasting(stream.retain_at_least)}")
    words = words or ["all messages"]
    if stream.dedupe:
        words.append("without unchanged messages")
    if stream.tombstones:
        words.append("with tombstones")
    return ", ".join(words)
