"""`headrace stream ls|info`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from headrace import store
from headrace.cli.connection import connected
from headrace.cli.loop import run_async
from headrace.cli.options import DatabaseOption, JsonOption, print_json
from headrace.cli.tables import number, print_pairs, print_table, size
from headrace.model.records import ConsumerInfo, StreamInfo

stream = App(name="stream", help_format="plaintext")

StreamName = Annotated[str, Parameter(help="The stream's name.")]


@stream.command(name="ls")
def list_streams(*, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """List all streams."""
    found = run_async(_streams, database)
    if json:
        print_json(found)
    elif not found:
        print("There is no stream yet: an app creates those that it declares, and `headrace publish --create` one.")
    else:
        print_table(
            ("stream", "messages#", "first#", "last#", "size#", "consumers#"),
            ((s.name, number(s.messages), number(s.first_seq), number(s.last_seq), size(s.size), number(s.consumers))
             for s in found),
        )  # fmt: skip


@stream.command(name="info")
def stream_info(name: StreamName, /, *, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """Show one stream and its consumers."""
    found, consumers = run_async(_stream, database, name)
    if json:
        print_json({"stream": found, "consumers": consumers})
        return
    print_pairs(
        [
            ("stream", found.name),
            ("created", f"{found.created_at:%Y-%m-%d %H:%M:%S %Z}"),
            ("messages", number(found.messages)),
            ("seqs", f"{number(found.first_seq)} to {number(found.last_seq)}"),
            ("size", size(found.size)),
            ("consumers", ", ".join(f"{one.name} (lag {number(one.lag)})" for one in consumers) or "none"),
        ]
    )


async def _streams(url: str | None) -> list[StreamInfo]:
    async with connected(url) as database:
        return await store.streams(database)


async def _stream(url: str | None, name: str) -> tuple[StreamInfo, list[ConsumerInfo]]:
    async with connected(url) as database:
        return await store.stream(database, name), await store.consumers(database, name)
