"""`headrace consumer ls|info`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from headrace import store
from headrace.cli.connection import connected
from headrace.cli.loop import run_async
from headrace.cli.options import DatabaseOption, JsonOption, print_json
from headrace.cli.tables import number, print_pairs, print_table
from headrace.model.records import ConsumerInfo

consumer = App(name="consumer", help_format="plaintext")


@consumer.command(name="ls")
def list_consumers(
    stream: Annotated[str | None, Parameter(help="Only those of this stream.", show_default=False)] = None,
    /,
    *,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """List the consumers, of a stream or of all."""
    found = run_async(_consumers, database, stream)
    if json:
        print_json(found)
    elif not found:
        print("There is no consumer yet: an app declares its own when it starts.")
    else:
        print_table(
            ("stream", "consumer", "lag#", "in flight#", "parked#", "blocked#", "dead#", "workers#"),
            ((c.stream, c.name, *map(number, (c.lag, c.in_flight, c.parked, c.blocked, c.dead_letters, c.owners)))
             for c in found),
        )  # fmt: skip


@consumer.command(name="info")
def consumer_info(
    stream: Annotated[str, Parameter(help="The stream that it reads.")],
    name: Annotated[str, Parameter(help="The consumer's name.")],
    /,
    *,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Show one consumer: its place, what is in flight, and its settings."""
    found = run_async(_consumer, database, stream, name)
    if json:
        print_json(found)
        return
    print_pairs(
        [
            ("consumer", f"{found.name} of {found.stream}"),
            ("position", f"{number(found.position)} ({number(found.lag)} behind)"),
            ("in flight", f"{number(found.in_flight)} with {number(found.owners)} workers"),
            ("parked", number(found.parked)),
            ("blocked", number(found.blocked)),
            ("dead letters", number(found.dead_letters)),
            ("holes", number(found.holes)),
            *((name, _setting(value)) for name, value in found.settings.items() if name not in ("stream", "name")),
        ]
    )


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_setting(inner)}" for name, inner in value.items()) or "default"
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    return "yes" if value is True else "no" if value is False else str(value)


async def _consumers(url: str | None, stream: str | None) -> list[ConsumerInfo]:
    async with connected(url) as database:
        if stream is not None:
            await store.stream(database, stream)  # an unknown stream is an error, and not an empty list
        return await store.consumers(database, stream)


async def _consumer(url: str | None, stream: str, name: str) -> ConsumerInfo:
    async with connected(url) as database:
        await store.stream(database, stream)
        return await store.consumer(database, stream, name)
