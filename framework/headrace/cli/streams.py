"""`headrace stream add|ls|info|edit|rm`: streams themselves. What is in them: see messages.py."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headrace.app.admin import Admin
from headrace.cli.connection import administer
from headrace.cli.options import DatabaseOption, JsonOption, YesOption, flag, print_json
from headrace.cli.problems import UsageProblem
from headrace.cli.settings import StreamSettings
from headrace.cli.tables import number, print_pairs, print_table, size
from headrace.cli.talk import NOT_DONE, confirmed, count, say
from headrace.cli.times import lasting, told
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.specs import StreamSpec

StreamName = Annotated[str, Parameter(help="The stream's name.")]


def add(
    name: StreamName,
    /,
    *,
    settings: StreamSettings = StreamSettings(),  # noqa: B008 - frozen
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Create a stream.

    Without a limit it keeps everything. One that is there with the same settings is left as it is.
    """
    there, created = administer(database, _add, StreamSpec(name=name, **settings.given()))
    if json:
        print_json(created)
    else:
        print(f"{'There is' if there else 'Created'} the stream {name!r}, which keeps {_policy(created)}.")


async def _add(admin: Admin, spec: StreamSpec) -> tuple[bool, StreamInfo]:
    """Whether it was there before, with the same settings; and how it is now."""
    there = spec.name in [one.name for one in await admin.streams()]
    await admin.create_stream(spec)
    return there, await admin.stream(spec.name)


def ls(*, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """List all streams."""
    found = administer(database, Admin.streams)
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


def info(name: StreamName, /, *, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """Show one stream, what it keeps, and its consumers."""
    found, consumers = administer(database, _info, name)
    if json:
        print_json({"stream": found, "consumers": consumers})
    else:
        print_pairs(_facts(found, consumers))


async def _info(admin: Admin, name: str) -> tuple[StreamInfo, list[ConsumerInfo]]:
    return await admin.stream(name), await admin.consumers(name)


def edit(
    name: StreamName,
    /,
    *,
    settings: StreamSettings = StreamSettings(),  # noqa: B008 - frozen
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Change settings of a stream.

    What isn't given stays as it is.
    """
    changes = settings.given()
    if not changes:
        raise UsageProblem("There is nothing to change: give a setting, such as --retain-up-to 7d.")
    changed = administer(database, _edit, name, changes)
    if json:
        print_json(changed)
    else:
        print(f"Changed the stream {name!r}, which keeps {_policy(changed)}.")


async def _edit(admin: Admin, name: str, changes: dict[str, object]) -> StreamInfo:
    await admin.edit_stream(name, **changes)
    return await admin.stream(name)


def rm(
    name: StreamName,
    /,
    *,
    yes: YesOption = False,
    force: Annotated[bool, flag("Even if it has consumers: they go too.")] = False,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> int:
    """Delete a stream with all that is in it."""
    if not administer(database, _rm, name, yes, force):
        return NOT_DONE
    if json:
        print_json({"deleted": name})
    else:
        print(f"Deleted the stream {name!r}.")
    return 0


async def _rm(admin: Admin, name: str, yes: bool, force: bool) -> bool:
    found = await admin.stream(name)
    consumers = f" and {count(found.consumers, 'consumer')}" if found.consumers else ""
    if not await confirmed(f"Delete the stream {name!r} with {count(found.messages, 'message')}{consumers}?", yes):
        return False
    await admin.delete_stream(name, force=force)
    return True


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
    """What a stream keeps, in a few words."""
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
