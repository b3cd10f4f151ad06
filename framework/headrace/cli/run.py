"""`headrace run TARGET`: the consumers of an application, in this process or in several."""

from __future__ import annotations

import logging
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.app.consumer import Consumer
from headrace.cli import member
from headrace.cli.logs import LogLevelOption, set_up_logging
from headrace.cli.loop import run_async
from headrace.cli.processes import run_processes
from headrace.cli.target import load

logger = logging.getLogger("headrace")

MOST_PROCESSES = 256


def run(
    target: Annotated[str, Parameter(help="The app: module:attribute, or path/to/file.py:attribute.")],
    /,
    *,
    processes: Annotated[
        int, Parameter(validator=Number(gte=1, lte=MOST_PROCESSES), help="How many processes share the work.")
    ] = 1,
    database: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="A Postgres URL, instead of the app's own or HEADRACE_DATABASE. Without any: the embedded Postgres.",
        ),
    ] = None,
    log_level: LogLevelOption = "info",
) -> int:
    """Run the consumers of an application until SIGTERM or SIGINT.

    Then it drains: leases nothing more, lets handlers finish for the app's shutdown_timeout, and settles. A second signal
    stops at once; what was not finished is given back.
    """
    me = member.from_environment()
    set_up_logging(log_level, me.number if me else None)
    app = load(target)
    app.dsn = database or (me.database if me else None) or app.dsn
    if processes > 1:
        return run_async(run_processes, app, target, processes, log_level)
    if me:
        member.end_with_parent(me)
    else:
        logger.info("%s runs with %s", target, ", ".join(_described(one) for one in app.consumers))
    run_async(app.run)
    return 0


def _described(consumer: Consumer) -> str:
    return f"{consumer.spec.name} on {consumer.spec.stream} ({', '.join(consumer.spec.filters)})"
