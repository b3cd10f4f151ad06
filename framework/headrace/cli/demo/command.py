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
from headrace.cli.demo.file_states import FileStates, compare_trees
from headrace.cli.demo.git_log import Change
from headrace.cli.demo.histories import FileHistory, History, RepositoryHistory
from headrace.cli.demo.temporary_stream import drop_after, unique_name
from headrace.cli.errors import UsageError
from headrace.cli.options.common import DatabaseOption
from headrace.cli.output.formats import count
from headrace.cli.output.logs import set_up_logging
from headrace.cli.output.tables import print_pairs
from headrace.cli.processes.event_loop import run_async

BATCH_SIZE = 1000
"""Messages published in one transaction."""

MAX_DIFFERENCES = 10
"""Maximum number of differences printed."""


class Result(msgspec.Struct):
    """The result of a run of the demo. Times are in seconds."""

    published: int
    publishing: float
    handling: float
    actors: int
    states: FileStates
    differences: list[str]

    @property
    def correct(self) -> bool:
        """Whether the tree equals git's, and every change arrived once and in order."""
        return not self.differences and not self.states.out_of_order and self.states.handled == self.published


def demo(
    *,
    repo: Annotated[Path, Parameter(help="The git repository.")] = Path(),
    history: Annotated[
        Path | None, Parameter(show_default=False, help="A file with a history as NDJSON, instead of a repository.")
    ] = None,
    tree: Annotated[
        Path | None, Parameter(show_default=False, help="A file with the tree at the end of --history, as JSON.")
    ] = None,
    actors: Annotated[int, Parameter(help="The number of actors.")] = 16,
    database: DatabaseOption = None,
) -> int:
    """Send a git repository's history through a stream, and check the result.

    Each change of a file in the history becomes a message, with the file as its
    key. A handler keeps the state of every file and checks that each change
    follows the one before. At the end the result must be git's own tree, file
    by file. Otherwise the exit code is 1.
    """
    set_up_logging("warning")
    changes = _open_history(repo, history, tree)
    result = run_async(_run, changes, actors, database)
    _report(changes, result)
    return 0 if result.correct else 1


def _open_history(repo: Path, history: Path | None, tree: Path | None) -> History:
    if (history is None) != (tree is None):
        raise UsageError("--history and --tree belong together. Give both or neither.")
    return FileHistory(history, tree) if history and tree else RepositoryHistory(repo)


async def _run(history: History, actors: int, url: str | None) -> Result:
    states = FileStates()
    app = App(url)
    stream = app.stream(unique_name())
    app.consumer(stream, name="file-states", concurrency=actors)(states.apply)
    async with app, drop_after(app, stream):
        started = time.perf_counter()
        async with app.running():
            published = await _publish(app, stream, history)
            publishing = time.perf_counter() - started
            await app.idle()
            handling = time.perf_counter() - started
    return Result(published, publishing, handling, actors, states, compare_trees(states.files(), history.tree()))


async def _publish(app: App, stream: str, history: History) -> int:
    published = 0
    batches = _batches(history.messages())
    # In a thread, because git takes time and the actors work meanwhile.
    while batch := await anyio.to_thread.run_sync(next, batches, None):
        published += await app.publish_many(stream, batch)
    return published


def _batches(items: Iterable[tuple[str, Change]]) -> Iterator[list[tuple[str, Change]]]:
    rest = iter(items)
    while batch := list(islice(rest, BATCH_SIZE)):
        yield batch


def _report(history: History, result: Result) -> None:
    states = result.states
    print_pairs(
        [
            ("history of", history.name),
            ("messages", f"{states.handled:,} of {result.published:,} handled"),
            ("keys", f"{states.keys:,}, {len(states.files()):,} of them files of the last commit"),
            ("actors", f"{result.actors}"),
            (
                "messages/s",
                f"{states.handled / result.handling:,.0f}, published and handled in {result.handling:.2f} s",
            ),
            ("order per key", f"WRONG for {count(states.out_of_order, 'message')}" if states.out_of_order else "kept"),
            ("tree", "equals git's" if not result.differences else f"WRONG, {len(result.differences):,} files differ"),
        ]
    )
    for sentence in [*states.examples, *result.differences[:MAX_DIFFERENCES]]:
        print(f"  {sentence}")
