"""`headrace run TARGET`: runs the consumers of an application, in this process or in several."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.app import settings
from headrace.app.app import App
from headrace.app.consumer import Consumer
from headrace.app.heartbeats import this_process_is
from headrace.cli.options.common import flag
from headrace.cli.options.target import load
from headrace.cli.output.logs import LogFormatOption, LogLevelOption, set_up_logging
from headrace.cli.problems import UsageProblem
from headrace.cli.processes import member
from headrace.cli.processes.crew import run_processes
from headrace.cli.processes.event_loop import run_async
from headrace.cli.processes.ready_file import ReadyFile
from headrace.cli.processes.reload import run_reloading, watched
from headrace.sources.postgres.capture.capturing import Capturing

logger = logging.getLogger("headrace")


def run(
    target: Annotated[str, Parameter(help="The app: module:attribute, or path/to/file.py:attribute.")],
    /,
    *,
    processes: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=settings.MOST_PROCESSES), show_default=False,
            help="How many processes share the work; 1 by default.",
        ),
    ] = None,
    check: Annotated[bool, flag("Do all that comes before the consumers, startup checks included, and end.")] = False,
    reload: Annotated[bool, flag("For development: start anew when a Python file changes.")] = False,
    reload_dir: Annotated[
        list[Path] | None,
        Parameter(name="--reload-dir", negative="", show_default=False, help="Watch this directory, too; may be repeated."),
    ] = None,
    database: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="A Postgres URL, instead of the app's own or HEADRACE_DATABASE. Without any: the embedded Postgres.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        Parameter(name="--ready-file", show_default=False, help="A file to keep there, and fresh, while all is ready."),
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:  # fmt: skip
    """Run the consumers of an application until SIGTERM or SIGINT.

    At the signal it drains. It leases no more messages, lets handlers finish
    for the app's shutdown_timeout, and settles. A second signal stops at once,
    and unfinished messages are released.

    You can also set options in the environment, such as HEADRACE_LOG_FORMAT, or
    in [tool.headrace] of pyproject.toml.
    """
    me = member.from_environment()
    found = settings.read(
        {"processes": processes, "ready_file": ready_file, "log_level": log_level, "log_format": log_format}
    )
    if (reload or reload_dir) and not check:
        if found.processes > 1:
            raise UsageProblem("--reload runs one process: leave --processes, and HEADRACE_PROCESSES, out.")
        directories = watched(target, reload_dir or ())
        set_up_logging(found.log_level, found.log_format)
        return run_async(run_reloading, target, directories, database, found)
    app = load(target)
    set_up_logging(found.log_level, found.log_format, me.number if me else None)
    app.dsn = database or (me.database if me else None) or app.dsn
    if check:
        run_async(app.preflight)
        print(f"{target} is fit to run here.")
        return 0
    if found.processes > 1 and me is None:
        return run_async(run_processes, app, target, found)
    if me:
        member.end_with_parent(me)
    if me is None or me.number is None:
        logger.info("%s runs with %s", target, ", ".join(_described(one) for one in app.consumers))
    run_async(_run, app, me.ready_path if me else found.ready_file)
    return 0


async def _run(app: App, ready_file: Path | None) -> None:
    this_process_is("run")
    app.attach(Capturing())  # also for sources that others made: their transforms are mostly in this app
    if ready_file is None:
        await app.run()
        return
    async with anyio.create_task_group() as group:
        group.start_soon(ReadyFile(ready_file).keep, app.readiness)
        await app.run()
        group.cancel_scope.cancel()


def _described(consumer: Consumer) -> str:
    return f"{consumer.spec.name} on {consumer.spec.stream} ({', '.join(consumer.spec.filters)})"
