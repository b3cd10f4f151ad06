"""`headrace spark run`: runs a user's program or a ready pipeline."""

from __future__ import annotations

import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number

from headrace.app import settings
from headrace.cli.errors import UnreadableInput, UsageError
from headrace.cli.options.common import DatabaseOption, JsonOption, flag
from headrace.cli.output.json_output import print_json
from headrace.cli.output.logs import LogFormatOption, LogLevelOption, set_up_logging
from headrace.model.errors import HeadraceError
from headrace_spark.cli.options import ShipOption
from headrace_spark.cli.stopping import Stopped, until_stopped
from headrace_spark.lake.following import FORMATS
from headrace_spark.pipelines.functions import load_function, pickle_by_value
from headrace_spark.pipelines.running import PipelineFailed, Report, translate

run = App(
    name="run",
    help="Run a program on Spark, or one of the ready pipelines.",
    usage="Usage: headrace spark run FILE|MODULE:FUNCTION|PIPELINE [OPTIONS] [-- ARGUMENTS]",
    help_format="plaintext",
)

StreamOption = Annotated[str, Parameter(name="--stream", help="The stream to read.")]
IntoOption = Annotated[str, Parameter(name="--into", help="The stream to publish to. It must exist.")]
CheckpointOption = Annotated[
    str, Parameter(name="--checkpoint", help="A directory for this pipeline alone, for its position. It is created.")
]
FilterOption = Annotated[
    list[str] | None,
    Parameter(
        name="--filter", negative="", show_default=False, help="Only messages whose keys match. May be repeated."
    ),
]
WhereOption = Annotated[
    str | None, Parameter(name="--where", show_default=False, help="Only messages that meet this condition.")
]
StartOption = Annotated[
    str, Parameter(name="--start", help="Where to begin, the first time: earliest, latest, a seq or a time.")
]
PartitionsOption = Annotated[
    int | None,
    Parameter(name="--partitions", validator=Number(gte=1), show_default=False, help="How many tasks read at a time."),
]
MaxRowsOption = Annotated[
    int | None,
    Parameter(name="--max-rows", validator=Number(gte=1), show_default=False, help="Seqs that a batch spans at most."),
]
ContinuousOption = Annotated[bool, flag("Continue until stopped, instead of ending with the messages that exist now.")]
LossOption = Annotated[bool, flag("Continue where messages were removed before they were read, instead of failing.")]
EveryOption = Annotated[str, Parameter(name="--every", help="With --continuous: how often to look.")]
RowsPerFileOption = Annotated[int, Parameter(validator=Number(gte=1), help="Rows that a file holds at most.")]
CompressionOption = Annotated[str, Parameter(help="zstd, snappy, gzip, lz4 or none.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Reading:
    """Which messages of a stream are read."""

    filter: FilterOption = None
    where: WhereOption = None
    start: StartOption = "earliest"
    max_rows: MaxRowsOption = None
    partitions: PartitionsOption = None
    ignore_data_loss: LossOption = False

    def options(self) -> dict[str, Any]:
        """Return the arguments of a pipeline."""
        rows = {} if self.max_rows is None else {"max_rows": self.max_rows}
        read = {"filter": self.filter or ">", "where": self.where, "start": self.start, "partitions": self.partitions}
        return {**read, **rows, "fail_on_data_loss": not self.ignore_data_loss}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Running:
    """How a pipeline runs."""

    database: DatabaseOption = None
    json: JsonOption = False
    ship: ShipOption = None
    log_level: LogLevelOption = None
    log_format: LogFormatOption = None

    def run(self, pipeline: Callable[..., Report], *arguments: Any, **options: Any) -> int:
        """Run a pipeline to its end, and print its report. Returns the exit code."""
        set_up(self.log_level, self.log_format, self.ship)
        return finished(lambda: pipeline(*arguments, database=self.database, **options), self.json)


@run.default
def program(
    target: Annotated[str, Parameter(help="A file, or module:function, or file.py:function.")],
    /,
    *arguments: Annotated[str, Parameter(help="The program's sys.argv. Write -- before them.")],
    database: DatabaseOption = None,
    ship: ShipOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run your program on Spark.

    A file is run unchanged. It gets its session from headrace_spark.session(). A function is called
    with the session, and with the arguments as text if it takes any. If it has a parameter
    `database`, it gets the database's URL. If it returns a streaming query, the command waits for
    it.
    """
    set_up(log_level, log_format, ship)
    sys.argv = [target, *arguments]
    if ":" not in target and target.endswith(".py"):
        if not Path(target).is_file():
            raise UnreadableInput(f"The file {target!r} does not exist in {Path.cwd()}.")
        sys.path.insert(0, str(Path(target).resolve().parent))
        return finished(lambda: _run_user_code(lambda: runpy.run_path(target, run_name="__main__")))
    if ":" not in target:
        raise UsageError(
            f"The pipeline {target!r} does not exist. Write archive, merge, replay, backfill, aggregate, a file.py, or module:function."
        )
    function = load_function(target)
    return finished(lambda: _run_user_code(lambda: _call(function, arguments, database)))


def _call(function: Callable[..., Any], arguments: tuple[str, ...], database: str | None) -> Any:
    """Call a user's function with the arguments that it takes."""
    from headrace_spark.pipelines.database import open_database
    from headrace_spark.session import is_connect, session

    takes_database = "database" in inspect.signature(function).parameters
    spark = session()
    if is_connect(spark):
        pickle_by_value(function)
    if not takes_database:
        return _awaited(function(spark, *arguments))
    with open_database(database) as database_connection:
        return _awaited(function(spark, *arguments, database=database_connection.url))


def _awaited(result: Any) -> Any:
    """Wait for the result if it is a streaming query."""
    if hasattr(result, "awaitTermination"):
        result.awaitTermination()
        return None
    return result


def _run_user_code(work: Callable[[], Any]) -> Any:
    """Run the user's code, and print the traceback of the errors that it raises. Spark's errors become one sentence."""
    try:
        return work()
    except (HeadraceError, SystemExit):
        raise
    except Exception as error:
        if (headrace_error := translate(error)) is not None:
            raise headrace_error from error
        traceback.print_exception(error)
        raise PipelineFailed(f"The program failed: {type(error).__name__}: {error}. Its traceback is above.") from error


def archive(
    *,
    stream: StreamOption,
    path: Annotated[str, Parameter(help="A directory, or a URL of any file system that Spark knows.")],
    continuous: ContinuousOption = False,
    every: EveryOption = "1m",
    consumer: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="A consumer that is created, and whose cursor follows the archive, so that retention can wait for it.",
        ),
    ] = None,
    rows_per_file: RowsPerFileOption = 1_000_000,
    compression: CompressionOption = "zstd",
    table: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            show_default=False,
            help=f"Also keep a table of this format: {', '.join(FORMATS)}. May be repeated.",
        ),
    ] = None,
    delta: Annotated[bool, flag("The same as --table delta.")] = False,
    reading: Reading = Reading(),
    running: Running = Running(),
) -> int:
    """Write a stream to Parquet files, by day, each message once.

    Run it again to continue where it stopped, even after it was killed.
    """
    from headrace_spark import archive as work

    files = {"rows_per_file": rows_per_file, "compression": compression}
    options = {"consumer": consumer, "delta": delta, "tables": table or (), **files}
    return running.run(work, stream, path, once=not continuous, every=every, **options, **reading.options())


def merge(
    *,
    path: Annotated[str, Parameter(help="The directory of the archive, or its URL.")],
    grace: Annotated[str, Parameter(help="How long files stay that were replaced.")] = "1d",
    rows_per_file: RowsPerFileOption = 1_000_000,
    compression: CompressionOption = "zstd",
    running: Running = Running(),
) -> int:
    """Merge the small files of an archive's closed days into larger ones.

    The first run after the grace time deletes the files that were replaced.
    """
    from headrace_spark import merge as work

    return running.run(work, path, grace=grace, rows_per_file=rows_per_file, compression=compression)


def replay(
    *,
    function: Annotated[
        str, Parameter(help="module:function, or file.py:function. It takes a DataFrame and returns a DataFrame.")
    ],
    into: IntoOption,
    checkpoint: CheckpointOption,
    stream: Annotated[str | None, Parameter(show_default=False, help="The stream to read ...")] = None,
    path: Annotated[
        str | None, Parameter(show_default=False, help="... or an archive, or other Parquet files.")
    ] = None,
    reading: Reading = Reading(),
    running: Running = Running(),
) -> int:
    """Send a stream's history, or an archive, through a function into another stream.

    The order of each key is kept. Run it again to continue where it stopped.
    """
    from headrace_spark import replay as work

    places = {"stream": stream, "path": path, "checkpoint": checkpoint}
    return running.run(work, function, into, **places, **reading.options())


def backfill(
    *,
    table: Annotated[str, Parameter(help="schema.table.")],
    stream: Annotated[str, Parameter(help="The stream to publish to. It must exist.")],
    source: Annotated[
        str | None,
        Parameter(name="--from", show_default=False, help="The URL of the table's database, if it is another one."),
    ] = None,
    column: Annotated[
        list[str] | None, Parameter(negative="", show_default=False, help="Only this column. May be repeated.")
    ] = None,
    where: Annotated[
        str | None, Parameter(show_default=False, help="Only rows that meet this condition, in SQL.")
    ] = None,
    key: Annotated[
        str | None, Parameter(show_default=False, help="A template, such as orders.{record.region}.{record.id}.")
    ] = None,
    partitions: PartitionsOption = None,
    write_id: Annotated[
        str | None,
        Parameter(show_default=False, help="A name for this backfill. A repetition within 7 days publishes nothing."),
    ] = None,
    running: Running = Running(),
) -> int:
    """Read a table, in parallel and under one snapshot, into a stream.

    For a table that is captured, see `headrace source postgres backfill`.
    """
    from headrace_spark import backfill as work

    options = {"source": source, "columns": column, "where": where, "key": key, "write_id": write_id}
    return running.run(work, table, stream, partitions=partitions, **options)


def aggregate(
    *,
    stream: StreamOption,
    into: IntoOption,
    window: Annotated[str, Parameter(help="How long a window is, such as 1h.")],
    aggregates: Annotated[
        dict[str, str],
        Parameter(
            name="--agg",
            negative="",
            help="A name and an expression in SQL: --agg.total 'sum(data.total)'. May be repeated.",
        ),
    ],
    checkpoint: CheckpointOption,
    slide: Annotated[
        str | None,
        Parameter(
            show_default=False, help="The interval between the starts of windows. Without it windows don't overlap."
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        Parameter(negative="", show_default=False, help="Group by this, instead of the key. May be repeated."),
    ] = None,
    time: Annotated[str, Parameter(help="When an event was: a column, or a field of data.")] = "created_at",
    watermark: Annotated[str, Parameter(help="How late an event may come.")] = "10m",
    schema: Annotated[
        str | None, Parameter(show_default=False, help="The fields of data: 'customer string, total double'.")
    ] = None,
    key: Annotated[
        str | None, Parameter(show_default=False, help="A template of the results' keys: {key}.{window_start}.")
    ] = None,
    mode: Annotated[
        Literal["update", "append"],
        Parameter(help="update: publish whenever a window changes. append: publish once, when it is closed."),
    ] = "update",
    continuous: ContinuousOption = False,
    every: EveryOption = "10s",
    reading: Reading = Reading(),
    running: Running = Running(),
) -> int:
    """Aggregate a stream by windows of time into another stream.

    Run it again to continue where it stopped.
    """
    from headrace_spark import aggregate as work

    windows = {"window": window, "slide": slide, "time": time, "watermark": watermark}
    results = {"aggregates": aggregates, "by": by or ("key",), "schema": schema, "key": key, "mode": mode}
    options = {"checkpoint": checkpoint, "once": not continuous, "every": every}
    return running.run(work, stream, into, **windows, **results, **options, **reading.options())


for _pipeline in (archive, merge, replay, backfill, aggregate):
    run.command(_pipeline)


def set_up(log_level: Any, log_format: Any, ship: list[str] | None = None) -> None:
    """Set up logging from the settings, and what the session ships, wherever the session is made."""
    if ship:
        os.environ["HEADRACE_SPARK_SHIP"] = ",".join(ship)
    found = settings.read({"log_level": log_level, "log_format": log_format})
    set_up_logging(found.log_level, found.log_format)


def finished(work: Callable[[], Any], json: bool = False) -> int:
    """Run to the end, and print what was done. Returns the exit code."""
    try:
        result = until_stopped(work)
    except Stopped as stopped:
        return stopped.exit_code
    if isinstance(result, Report):
        print_json(msgspec.to_builtins(result)) if json else print(sentence(result))
    return 0


def sentence(report: Report) -> str:
    """Format a report as one sentence."""
    of = f" of {report.stream!r}" if report.stream else ""
    rows = "rows" if report.rows is None else f"{report.rows:,} rows"
    parts = [f"{report.pipeline}: {rows}{of} into {report.into!r}"]
    if report.first is not None:
        parts.append(f"seq {report.first} to {report.last}")
    if report.files is not None:
        parts.append(f"{report.files:,} files")
    if report.late:
        parts.append(f"{report.late:,} came too late")
    return f"{', '.join(parts)}, in {report.seconds:.1f} s."
