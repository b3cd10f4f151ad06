"""`headrace spark check`: checks the Spark installation and runs a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.model.errors import HeadraceError
from headrace_spark.cli.options import JsonOption, Where

if TYPE_CHECKING:
    from headrace_spark.session.check import Report


def check(
    *,
    where: Where = Where(),  # noqa: B008 - frozen
    database: Annotated[
        str | None,
        Parameter(
            name="--database",
            show_default=False,
            help="Also try this database: write ten rows into a new stream, read them, and delete it. A Postgres URL, which executors must reach.",
        ),
    ] = None,
    timeout: Annotated[
        float, Parameter(name="--timeout", validator=Number(gt=0), help="Seconds that the job may take.")
    ] = 60.0,
    json: JsonOption = False,
) -> int:
    """Check the Spark installation here, and run a job.

    Looks for the libraries, for Java and for settings, starts a session as they say, and runs a
    Python function in its workers. With --database it also writes and reads a stream of that
    database, which is then deleted. The exit code is 0 if all of it works, 78 if settings are
    invalid, and 69 if something is missing or can't be reached.
    """
    from headrace_spark.cli.stopping import Stopped, until_stopped
    from headrace_spark.session.check import check
    from headrace_spark.session.sessions import started

    def work() -> Report:
        report = check(where.settings(), timeout=timeout)
        if database is not None and report.problem is None:
            try_database(report, database)
        return report

    try:
        report = work() if started() else until_stopped(work)  # also ends the session
    except Stopped as stopped:
        return stopped.exit_code
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report, enc_hook=str), indent=2).decode() + "\n")
    else:
        _print(report)
    if report.problem is not None:
        print(f"headrace: {report.problem}", file=sys.stderr)
    return report.exit_code


def try_database(report: Report, database: str) -> None:
    """Try a database with the session, and add what came of it to the report."""
    from headrace_spark.cli.trial import trial
    from headrace_spark.session import session

    try:
        trial(session(), database, report.parts.__setitem__)
    except HeadraceError as error:
        report.problem, report.exit_code = str(error), error.exit_code


def _print(report: Report) -> None:
    pairs = list(_pairs(report))
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"{name.ljust(width)}  {value}")


def _pairs(report: Report) -> Iterator[tuple[str, str]]:
    yield "Python", f"{report.python}, {report.executable}"
    for name, version in report.packages.items():
        yield name, version or "not installed"
    if report.java is not None:
        for sentence in report.java.passed_over:
            yield "Java", f"passed over: {sentence}"
        how = ", through a shim" if report.java.shimmed else ""
        yield "Java", f"{report.java.version}, from {report.java.found}{how}, {report.java.home}"
    for setting in report.settings:
        yield setting.name, f"{setting.value}, by {setting.place}"
    if report.spark is not None:
        yield "session", f"Spark {report.spark}, started in {report.started_in:.1f} s"
    if report.shipped:
        yield "shipped", ", ".join(report.shipped)
    for worker in report.workers:
        yield "worker", f"Python {worker.python}, {worker.executable}, headrace {worker.headrace}"
    if report.ran_in is not None:
        yield "job", f"done in {report.ran_in:.1f} s"
    for part, seconds in report.parts.items():
        yield part, f"done in {seconds:.1f} s"
