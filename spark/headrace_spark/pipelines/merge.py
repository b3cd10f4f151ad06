"""Merge pipeline: merges the small files of an archive's closed days. `merges` describes how a merge is committed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.model.durations import Duration, require_zone, seconds
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace_spark.lake.files import CantKeepFiles, files_at
from headrace_spark.lake.following import Archive, check_formats, existing_formats, update_tables
from headrace_spark.lake.layout import Layout, is_of_a_batch
from headrace_spark.lake.merges import Merge, Merges, Written, day_of, is_of_closed_day
from headrace_spark.lake.parquet import COLUMNS, ROWS_PER_FILE, Form, write_files
from headrace_spark.pipelines.database import open_database
from headrace_spark.pipelines.running import Report, timed, translated_errors
from headrace_spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_FILES = 5_000
"""How many files one merge replaces at most. A day with more of them has several merges."""


def merge(
    path: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    database: str | None = None,
    grace: Duration = "1d",
    rows_per_file: int = ROWS_PER_FILE,
    compression: str = "zstd",
    now: datetime | None = None,
) -> Report:
    """Merge the small files of an archive's closed days into larger ones, sorted by seq.

    A day is closed when it is over in UTC. The files of the archive's last batch stay as they are. The tables of the
    archive follow. An archive run may be at work meanwhile.

    The first run after the grace time deletes the files that were replaced. Readers that opened them must have ended by
    then. A listing of the archive shows the larger files from then on.

    Args:
        path: the directory or the URL of the archive.
        spark: a session. None uses the process's own.
        database: the Postgres URL of the archive's stream, where the lock of the merge and the tables are. None uses the
            settings.
        grace: how long replaced files stay, in seconds or as text.
        rows_per_file: maximum number of rows in a merged file.
        compression: compression of the merged files: zstd, snappy, gzip, lz4 or none.
        now: the current time, with its time zone. None uses the clock.

    Returns:
        A report of what was done. `rows` and `files` count what was written, also what was written again to become
        visible, and `batches` counts the merges.

    Raises:
        InvalidInput: the path holds no archive.
        CantKeepFiles: another process merges the archive, its files can't be written, or the database does not have its tables.
        ConfigurationError: a setting is invalid, or a package for a table of the archive is missing.
        StoreUnavailable: the database can't be reached.
    """
    form = Form(rows_per_file, compression)
    period = timedelta(seconds=seconds(grace, "grace"))
    if period < timedelta(0):
        raise ConfigurationError(f"grace={grace!r} is invalid. It must be at least 0 seconds.")
    require_zone(now, "now")
    spark = spark or session()
    layout = Layout(files_at(path, spark))
    identity = layout.identity()
    if identity is None:
        raise InvalidInput(f"{layout.files.root!r} holds no archive.")
    report = Report(pipeline="merge", stream=identity.stream, into=os.fspath(path), written=0, files=0)
    with timed(report), open_database(database) as database_connection:
        check_formats(existing_formats(layout), layout.files.root)
        with database_connection.exclusive_lock(f"headrace merge {identity.id}") as locked, translated_errors():
            if not locked:
                raise CantKeepFiles(f"Another process merges the archive in {layout.files.root!r}. Run one at a time.")
            kept = Archive(
                id=identity.id, stream=identity.stream, root=layout.files.root, database=database_connection.url
            )
            clock = (lambda: datetime.now(UTC)) if now is None else (lambda: now)
            _Merger(spark, layout, kept, form, clock, report).run(period)
    return report


class _Merger:
    """Merges the files of one archive. No other process may be merging it."""

    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        archive: Archive,
        form: Form,
        clock: Callable[[], datetime],
        report: Report,
    ) -> None:
        self._spark = spark
        self._layout = layout
        self._archive = archive
        self._form = form
        self._clock = clock
        self._report = report
        self._merges = Merges(layout)

    def run(self, grace: timedelta) -> None:
        self._merges.finish()
        self._announce()
        merges = self._merges.all()
        due = self._merges.due(merges, self._clock() - grace)
        replaced = {place for merge in due for place in merge.replaces}
        self._merges.sweep(merges, [merge for merge in merges if replaced.issuperset(merge.files.values())])
        shown = {place for merge in merges if not merge.hidden for place in merge.replaces}
        for merge in due:
            if merge.hidden and shown.isdisjoint(merge.files.values()):
                self._show(merge)
        for places in self._small_files(merges):
            self._commit(self._write(places), places, visible=False)
        self._announce()

    def _announce(self) -> None:
        """Bring the tables up to date, and record that they have the merges.

        No table is created. In another database than the archive's it would be one beside the archive's own, which would
        then have files that are deleted.
        """
        update_tables(self._archive, self._layout, existing_formats(self._layout), create=False)
        self._merges.announce(self._clock())

    def _show(self, merge: Merge) -> None:
        """Delete the files that a merge replaced, and put its own where a listing shows them, as another merge."""
        places = list(merge.files.values())
        written = self._write(places)
        for place in merge.replaces:
            self._layout.files.remove(place)
        self._commit(written, places, visible=True)

    def _small_files(self, merges: Sequence[Merge]) -> list[list[str]]:
        """The files to merge: those of each closed day that come from batches, without the last batch's."""
        days: dict[date, list[str]] = {}
        for name in self._layout.files.names():
            if is_of_closed_day(name, self._clock()):
                days[day_of(name)] = [
                    f"{name}/{file}" for file in self._layout.files.names(name) if is_of_a_batch(file)
                ]
        # Read after the files, so that all files are of these batches, and complete but for the last one's.
        batches = self._layout.batches()
        last = self._layout.manifest(batches[-1]) if batches else None
        apart = {place for merge in merges for place in merge.replaces}
        apart |= set(last.files.values()) if last is not None else set()
        days = {day: [place for place in places if place not in apart] for day, places in days.items()}
        cut = [places[n : n + MAX_FILES] for places in days.values() for n in range(0, len(places), MAX_FILES)]
        return [places for places in cut if len(places) > 1]

    def _write(self, places: Sequence[str]) -> Written:
        """Write the rows of files of one day to new files, sorted by seq."""
        reader = self._spark.read.options(
            ignoreCorruptFiles=False, ignoreMissingFiles=False
        )  # they would be replaced, too
        rows = reader.parquet(*self._layout.paths(places)).select(*COLUMNS)
        count = rows.count()
        parts = -(-count // self._form.rows_per_file)
        ranges = rows.repartitionByRange(parts, "seq") if parts > 1 else rows.coalesce(1)
        directory = self._merges.begin()
        target = f"{self._layout.files.root}/{directory}/day={day_of(places[0])}"
        found = write_files(ranges.sortWithinPartitions("seq"), target, self._form)
        return Written(directory, self._layout.written_files(directory, count, "the merge"), *found)

    def _commit(self, written: Written, places: Sequence[str], *, visible: bool) -> None:
        merge = self._merges.commit(written, places, visible=visible)
        self._report.add(merge.rows)
        self._report.written = self._report.rows
        self._report.files = (self._report.files or 0) + len(merge.files)
        self._report.extend_range(merge.first, merge.last)
