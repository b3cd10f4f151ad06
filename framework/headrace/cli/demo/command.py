"""`headrace demo`: a git repository's history goes through a stream and a pool of actors, while things go wrong, and
the result is checked.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headrace import App
from headrace.cli.demo.books import Books, Totals, compare_trees
from headrace.cli.demo.histories import FileHistory, History, RepositoryHistory
from headrace.cli.demo.scenario import FAST, SLOW, Pace, Scenario
from headrace.cli.demo.screen import screen
from headrace.cli.demo.speed import MESSAGES, Speed, measure
from headrace.cli.demo.temporary_stream import drop_after, unique_name
from headrace.cli.errors import UsageError
from headrace.cli.options.common import DatabaseOption
from headrace.cli.output.logs import set_up_logging
from headrace.cli.output.tables import print_pairs
from headrace.cli.processes.event_loop import run_async
from headrace.model.text.counting import count

MAX_DIFFERENCES = 10
"""Maximum number of differences printed."""


class Result(msgspec.Struct):
    """The result of a run of the demo."""

    totals: Totals
    differences: list[str]
    speed: Speed
    seconds: float

    @property
    def correct(self) -> bool:
        """Whether the tree equals git's, and every message had its effect once and in order, except the poison."""
        return self.totals.correct and not self.differences and self.totals.dead == 1


def demo(
    *,
    repo: Annotated[Path, Parameter(help="The git repository.")] = Path(),
    history: Annotated[
        Path | None, Parameter(show_default=False, help="A file with a history as NDJSON, instead of a repository.")
    ] = None,
    tree: Annotated[
        Path | None, Parameter(show_default=False, help="A file with the tree at the end of --history, as JSON.")
    ] = None,
    actors: Annotated[int, Parameter(help="The number of batches that a process handles at a time.")] = 4,
    fast: Annotated[bool, Parameter(negative=(), help="As fast as possible, with nothing to watch.")] = False,
    database: DatabaseOption = None,
) -> int:
    """Send a git repository's history through a stream, let things go wrong, and check the result.

    Each change of a file in the history becomes a message, with the file as its
    key. Two worker processes enter them into tables, and check that each change
    follows the one before. Meanwhile one of them is killed, a message makes its
    handler raise, and a publisher commits late. At the end the result must be
    git's own tree, file by file, and each message must have had its effect once.
    Otherwise the exit code is 1.
    """
    set_up_logging("error")
    if actors < 1:
        raise UsageError(f"--actors is {actors}. It must be at least 1.")
    changes = _open_history(repo, history, tree)
    _print_handler()
    result = run_async(_run, changes, actors, FAST if fast else SLOW, database)
    _report(changes, result)
    if not result.correct:
        return 1
    _print_next_steps()
    return 0


def _print_handler() -> None:
    """Print the handler that the worker processes run, as it is written."""
    source = Path(__file__).with_name("worker.py")
    code = source.read_text(encoding="utf-8").partition("@app.consumer(")
    print(
        f"Two worker processes run this handler, from {source.name}:\n\n{indent(''.join(code[1:]), '    ')}", flush=True
    )


def _open_history(repo: Path, history: Path | None, tree: Path | None) -> History:
    if (history is None) != (tree is None):
        raise UsageError("--history and --tree belong together. Give both or neither.")
    return FileHistory(history, tree) if history and tree else RepositoryHistory(repo)


async def _run(history: History, actors: int, pace: Pace, url: str | None) -> Result:
    app, stream = App(url), unique_name()
    books = Books(stream)
    async with app, drop_after(app, stream, books):
        await app.admin.create_stream(stream)
        await books.create(app.database)
        with screen(history.name) as show:
            scenario = Scenario(app, stream, history, books, pace, show)
            await scenario.run(actors)
        totals = await books.totals(app.database)
        differences = compare_trees(totals.files, history.tree())
        measured = App(app.database.dsn)
        some, speed_stream = list(islice(history.messages(), MESSAGES)), unique_name()
        async with drop_after(app, speed_stream):
            speed = await measure(measured, speed_stream, some)
    return Result(totals, differences, speed, scenario.state.seconds)


def _report(history: History, result: Result) -> None:
    totals, speed = result.totals, result.speed
    print()
    print_pairs(
        [
            ("history of", history.name),
            ("messages", f"{totals.handled:,} of {totals.messages:,} handled, in {result.seconds:.1f} s; {count(totals.dead, 'dead letter')}"),
            ("keys", f"{totals.keys:,}, {len(totals.files):,} of them files of the last commit"),
            ("lost", f"{totals.lost:,}"),
            ("out of order", f"{totals.out_of_order:,}"),
            ("doubled effects", f"{totals.doubled:,}; {count(totals.again, 'message')} redelivered after the kill of their process"),
            ("tree", "equals git's" if not result.differences else f"WRONG, {len(result.differences):,} files differ"),
            ("speed here", f"published {speed.published:,.0f} messages/s, handled {speed.handled:,.0f}/s; bare inserts {speed.inserted:,.0f}/s"),
        ]
    )  # fmt: skip
    for sentence in [*totals.examples, *result.differences[:MAX_DIFFERENCES]]:
        print(f"  {sentence}")


def _print_next_steps() -> None:
    """Print the next commands to try, as they can be typed here."""
    program = "headrace" if shutil.which("headrace") else shlex.quote(str(Path(sys.argv[0]).absolute()))
    print(f"\nNext, make your own service:\n\n  {program} new shop && cd shop\n  {program} run shop.service:app")
    print("""  echo '{"key": "orders.us.1", "data": {"id": 1, "items": ["a hat"]}}' | """ + f"{program} publish orders")
    print("\nSee it in a browser, at http://127.0.0.1:7376:\n")
    if find_spec("litestar") is None:
        print(f"  {shlex.quote(sys.executable)} -m pip install {_server_requirement()}")
    print(f"  {program} serve")


def _server_requirement() -> str:
    """Return what to install for `headrace serve`: of this clone, or as published."""
    clone = Path(__file__).parents[4]
    return shlex.quote(f"{clone}[server]" if (clone / "pyproject.toml").exists() else "headrace[server]")
