"""`headrace demo`: sends the history of a git repository through a stream and a pool of actors, and
checks the resulting tree.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import anyio.to_thread
import msgspec
from cyclopts import Parameter

from headrace import App
from headrace.cli.demo.git_history import Change
from headrace.cli.demo.keeper import Keeper, differences
from headrace.cli.demo.sources import FromFiles, FromRepository, Source
from headrace.cli.demo.stream import dropped_after, fresh_name
from headrace.cli.options.common import DatabaseOption
from headrace.cli.output.logs import set_up_logging
from headrace.cli.output.tables import print_pairs
from headrace.cli.problems import UsageProblem
from headrace.cli.processes.event_loop import run_async

BATCH = 1000
SHOWN = 10


class Result(msgspec.Struct):
    """The result of a run of the demo. Times are in seconds."""

    published: int
    publishing: float
    handling: float
    actors: int
    keeper: Keeper
    wrong: list[str]

    @property
    def right(self) -> bool:
        """Whether the tree is exactly right, and every change arrived once and in order."""
        return not self.wrong and not self.keeper.out_of_order and self.keeper.handled == self.published


def demo(
    *,
    repo: Annotated[Path, Parameter(help="A git repository.")] = Path(),
    history: Annotated[
        Path | None, Parameter(show_default=False, help="Instead of a repository: its history, as NDJSON.")
    ] = None,
    tree: Annotated[Path | None, Parameter(show_default=False, help="With --history: the tree at its end.")] = None,
    actors: Annotated[int, Parameter(help="How many messages are handled at a time.")] = 16,
    database: DatabaseOption = None,
) -> int:
    """Send a git repository's history through a stream, and check the result.

    Each change of a file in the history becomes a message, with the file as its
    key. A handler keeps the state of every file and checks that each change
    follows the one before. At the end the result must be git's own tree, file
    by file. If it is not, the exit code is 1.
    """
    set_up_logging("warning")
    source = _source(repo, history, tree)
    result = run_async(_run, source, actors, database)
    _report(source, result)
    return 0 if result.right else 1


def _source(repo: Path, history: Path | None, tree: Path | None) -> Source:
    if (history is None) != (tree is None):
        raise UsageProblem("--history and --tree go together: a history, and the tree that it leads to.")
    return FromFiles(history, tree) if history and tree else FromRepository(repo)


async def _run(source: Source, actors: int, url: str | None) -> Result:
    keeper = Keeper()
    app = App(url)
    stream = app.stream(fresh_name())
    app.consumer(stream, name="keeper", concurrency=actors)(keeper.keep)
    async with app, dropped_after(app, stream):
        begun = time.perf_counter()
        async with app.running():
            published = await _publish(app, stream, source)
            publishing = time.perf_counter() - begun
            await app.idle()
            handling = time.perf_counter() - begun
    return Result(published, publishing, handling, actors, keeper, differences(keeper.files(), source.tree()))


async def _publish(app: App, stream: str, source: Source) -> int:
    published = 0
    batches = _batches(source.messages())
    # In a thread, because git takes time and the actors work meanwhile.
    while batch := await anyio.to_thread.run_sync(next, batches, None):
        published += await app.publish_many(stream, batch)
    return published


def _batches(items: Iterable[tuple[str, Change]]) -> Iterator[list[tuple[str, Change]]]:
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _report(source: Source, result: Result) -> None:
    keeper = result.keeper
    print_pairs(
        [
            ("history of", source.name),
            ("messages", f"{keeper.handled:,} of {result.published:,} handled"),
            ("keys", f"{keeper.keys:,}, of which {len(keeper.files()):,} are files now"),
            ("actors", f"{result.actors}"),
            (
                "messages/s",
                f"{keeper.handled / result.handling:,.0f}, published and handled in {result.handling:.2f} s",
            ),
            ("order per key", f"{keeper.out_of_order:,} broken" if keeper.out_of_order else "kept"),
            ("tree exactly right", "yes" if not result.wrong else f"NO, {len(result.wrong):,} files differ"),
        ]
    )
    for sentence in [*keeper.examples, *result.wrong[:SHOWN]]:
        print(f"  {sentence}")
