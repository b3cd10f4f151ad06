"""`headrace run TARGET`: runs the consumers of an application, in this process or in several."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.app.app import App
from headrace.app.consumer import Consumer
from headrace.app.heartbeats import set_process_kind
from headrace.app.settings import MAX_PROCESSES
from headrace.app.settings import read as read_settings
from headrace.cli.errors import UsageError
from headrace.cli.options.common import flag
from headrace.cli.output.logs import LogFormatOption, LogLevelOption, set_up_logging
from headrace.cli.processes import child_info
from headrace.cli.processes.app_loader import load_app
from headrace.cli.processes.event_loop import run_async
from headrace.cli.processes.garbage import spare_what_exists
from headrace.cli.processes.ready_file import ReadyFile
from headrace.cli.processes.reload import directories_to_watch, run_with_reload
from headrace.cli.processes.supervisor import run_processes
from headrace.model.log import Log
from headrace.sources.postgres.capture.capturing import Capturing
from headrace.sources.postgres.rules.transform_watchdog import let_end_process

log = Log("headrace")


def run(
    target: Annotated[str, Parameter(help="The app: module:attribute, or path/to/file.py:attribute.")],
    /,
    *,
    processes: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=MAX_PROCESSES),
            show_default=False,
            help="The number of processes that share the work. Default: 1.",
        ),
    ] = None,
    check: Annotated[bool, flag("Run the startup and its checks, start no consumers, and exit.")] = False,
    reload: Annotated[bool, flag("For development: restart when a Python file changes.")] = False,
    reload_dir: Annotated[
        list[Path] | None,
        Parameter(
            name="--reload-dir", negative="", show_default=False, help="Another directory to watch. Repeat for several."
        ),
    ] = None,
    database: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="A Postgres URL. Default: that of the app, then HEADRACE_DATABASE, then the embedded Postgres. Other users of the"
            " machine can see a password in it, but not in HEADRACE_DATABASE.",
        ),
    ] = None,
    no_migrate: Annotated[bool, flag("Don't upgrade the schema at start. Fail if it is too old.")] = False,
    ready_file: Annotated[
        Path | None,
        Parameter(
            name="--ready-file",
            show_default=False,
            help="A file that exists, and is touched every second, while the process is ready.",
        ),
    ] = None,
    ship: Annotated[
        list[str] | None,
        Parameter(
            name="--ship",
            negative="",
            show_default=False,
            help="For Spark handlers on a cluster: a module, a package or a path that executors need, such as . or service.py."
            " Repeat for several. Default: HEADRACE_SPARK_SHIP.",
        ),
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run the consumers of an application until SIGTERM, SIGINT or SIGHUP.

    At the signal it drains. It leases no more messages, lets handlers finish
    for the app's shutdown_timeout, and settles. A second signal stops
    immediately, and unfinished messages are released.

    You can also set options in the environment, such as HEADRACE_LOG_FORMAT, or
    in [tool.headrace] of pyproject.toml.
    """
    if ship:  # the session is made later, perhaps in processes that this one starts
        os.environ["HEADRACE_SPARK_SHIP"] = ",".join(ship)
    child = child_info.from_environment()
    settings = read_settings(
        {"processes": processes, "ready_file": ready_file, "log_level": log_level, "log_format": log_format}
    )
    if (reload or reload_dir) and not check:
        if settings.processes > 1:
            raise UsageError("--reload runs only one process. Leave out --processes and unset HEADRACE_PROCESSES.")
        directories = directories_to_watch(target, reload_dir or ())
        set_up_logging(settings.log_level, settings.log_format)
        return run_async(
            run_with_reload, target, directories, database, settings, *(["--no-migrate"] if no_migrate else [])
        )
    app = load_app(target)
    set_up_logging(settings.log_level, settings.log_format, child.number if child else None)
    app.dsn = database or (child.database if child else None) or app.dsn
    if no_migrate:
        app.migrate = False
    if check:
        run_async(app.preflight)
        print(f"All checks of {target} passed.")
        return 0
    if settings.processes > 1 and child is None:
        return run_async(run_processes, app, target, settings)
    if child:
        child_info.stop_with_parent(child)
    if child is None or child.number is None:
        log.info("app starting", app=target, consumers=", ".join(_describe(one) for one in app.consumers))
    run_async(_run, app, child.ready_path if child else settings.ready_file)
    return 0


async def _run(app: App, ready_file: Path | None) -> None:
    set_process_kind("run")
    let_end_process()
    # It also captures sources that the app didn't declare, because it mostly has their transforms. Their
    # URLs may come from users of the API, so they get no passwords of this process.
    app.attach(Capturing(database_of=app.database_of))
    # Objects that the app has imported and made when it starts stay, also for its telemetry. The garbage collector
    # would go through all of it now and then, and messages would wait. A collection before that would delay the first
    # message by some 10 ms.
    run_app = partial(app.run, on_running=spare_what_exists)
    if ready_file is None:
        await run_app()
        return
    async with anyio.create_task_group() as group:
        group.start_soon(ReadyFile(ready_file).keep, app.readiness)
        await run_app()
        group.cancel_scope.cancel()


def _describe(consumer: Consumer) -> str:
    return f"{consumer.spec.stream}/{consumer.spec.name} ({', '.join(consumer.spec.filters)})"
