"""`headrace stream add|ls|info|edit|rm`: create, show, change and delete streams. For their messages
see messages.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.options.backend import Backend
from headrace.cli.options.common import JsonOption, YesOption, flag, print_json
from headrace.cli.options.connection import administer
from headrace.cli.options.settings import StreamSettings
from headrace.cli.options.times import lasting, told
from headrace.cli.output.notices import NOT_DONE, confirmed, count, say
from headrace.cli.output.tables import number, print_pairs, print_table, size
from headrace.cli.problems import UsageProblem
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.specs import StreamSpec

if TYPE_CHECKING:
    from headrace.client import Administration

StreamName = Annotated[str, Parameter(help="The stream's name.")]


def add(
    name: StreamName,
    /,
    *,
    settings: StreamSettings = StreamSettings(),  # noqa: B008 - frozen
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Create a stream.

    Without a limit it keeps all messages. A stream that exists with the same
    settings is left unchanged.
    """
    new, created = administer(backend, _add, StreamSpec(name=name, **settings.given()))
    if json:
        print_json(created)
    else:
        print(f"{'Created' if new else 'There is'} the stream {name!r}, which keeps {_policy(created)}.")


async def _add(admin: Administration, spec: StreamSpec) -> tuple[bool, StreamInfo]:
    """Create the stream. Returns whether it is new (False if it existed with the same settings), and its info."""
    new = await admin.create_stream(spec)
    return new, await admin.stream(spec.name)


def ls(
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List all streams."""
    found = administer(backend, lambda admin: admin.streams())
    if json:
        print_json(found)
    elif not found:
        say("There is no stream yet: `headrace stream add` creates one, and so does an app that declares it.")
    else:
        print_table(
            ("stream", "messages#", "first#", "last#", "size#", "consumers#", "keeps"),
            ((s.name, number(s.messages), number(s.first_seq), number(s.last_seq), size(s.size), number(s.consumers),
              _policy(s)) for s in found),
        )  # fmt: skip


def info(
    name: StreamName,
    /,
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show one stream: its settings, its retention and its consumers."""
    found, consumers = administer(backend, _info, name)
    if json:
        print_json({"stream": found, "consumers": consumers})
    else:
        print_pairs(_facts(found, consumers))


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
        raise UsageProblem("There is nothing to change: give a setting, such as --retain-up-to 7d.")
    changed = administer(backend, _edit, name, changes)
    if json:
        print_json(changed)
    else:
        print(f"Changed the stream {name!r}, which keeps {_policy(changed)}.")


async def _edit(admin: Administration, name: str, changes: dict[str, object]) -> StreamInfo:
    await admin.edit_stream(name, **changes)
    return await admin.stream(name)


def rm(
    name: StreamName,
    /,
    *,
    yes: YesOption = False,
    force: Annotated[bool, flag("Even if it has consumers: they go too.")] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Delete a stream and all its messages."""
    if not administer(backend, _rm, name, backend.asked(yes), force):
        return NOT_DONE
    if json:
        print_json({"deleted": name})
    else:
        print(f"Deleted the stream {name!r}.")
    return 0


async def _rm(admin: Administration, name: str, yes: bool, force: bool) -> bool:
    if not yes and not await confirmed(_question(await admin.stream(name))):
        return False
    await admin.delete_stream(name, force=force)
    return True


def _question(stream: StreamInfo) -> str:
    consumers = f" and {count(stream.consumers, 'consumer')}" if stream.consumers else ""
    return f"Delete the stream {stream.name!r} with {count(stream.messages, 'message')}{consumers}?"


def _facts(stream: StreamInfo, consumers: list[ConsumerInfo]) -> list[tuple[str, str]]:
    facts = [
        ("stream", stream.name),
        ("created", told(stream.created_at)),
        ("messages", number(stream.messages)),
        ("seqs", f"{number(stream.first_seq)} to {number(stream.last_seq)}"),
        ("size", size(stream.size)),
        ("keeps", _policy(stream)),
    ]
    if stream.segments:
        facts.append(("segments", number(stream.segments)))
    if stream.full:
        facts.append(("full", "publishing is refused until there is room"))
    if stream.scheduled:
        facts.append(("scheduled", f"{number(stream.scheduled)}, the next at {told(stream.next_scheduled)}"))
    facts.append(("message ids", f"remembered for {lasting(stream.dedupe_window)}"))
    return [*facts, ("consumers", ", ".join(f"{one.name} (lag {number(one.lag)})" for one in consumers) or "none")]


def _policy(stream: StreamInfo) -> str:
    """The stream's retention, in a few words."""
    words = []
    if stream.one_message_per_key:
        words.append("the newest of each key")
    if stream.retention == "interest":
        words.append("until every consumer is done")
    if stream.retain_up_to is not None:
        words.append(f"up to {lasting(stream.retain_up_to)}")
    if stream.max_storage is not None:
        words.append(f"up to {size(stream.max_storage)}")
    if stream.retain_at_least is not None:
        words.append(f"at least {lasting(stream.retain_at_least)}")
    words = words or ["everything"]
    if stream.dedupe:
        words.append("without repetitions")
    if stream.tombstones:
        words.append("null deletes")
    return ", ".join(words)
