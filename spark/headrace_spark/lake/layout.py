"""The directory layout of an archive, and the commit of a batch.

    archive/
      day=2026-11-21/seq-0000000000000000001-0000000000000100000-0.parquet    the data, for all
      readers
      _headrace/archive.json          the identity of the archive: its stream and filters
      _headrace/checkpoint/           Spark's own checkpoint
      _headrace/batches/0000000012.json     a committed batch: its rows, its seqs, its files
      _headrace/writing/              files of a batch that is being written
      _headrace/merged/, _headrace/merges/     larger files that replace those of several batches (`merges`)

Spark's own file sink is exactly-once only for readers that know its log. Other readers list the
directory, and see the leftovers of a killed run. Here a batch's files are first written aside. Then
its manifest is created atomically, with the target of each file. From then on the batch is
committed. Then the files are moved. A run that starts after a kill moves the files that are not
moved yet, and deletes those that no manifest names. A plain listing thus never has a row twice, and
after the next run no row is missing. Readers that follow the Hive convention (Spark, DuckDB,
pyarrow, Trino) skip names that begin with `_`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headrace.model.errors import InvalidInput
from headrace_spark.lake.claims import claim
from headrace_spark.lake.files import CantKeepFiles, Files

DIRECTORY = "_headrace"
CHECKPOINT = f"{DIRECTORY}/checkpoint"
_BATCHES = f"{DIRECTORY}/batches"
_WRITING = f"{DIRECTORY}/writing"
_IDENTITY = f"{DIRECTORY}/archive.json"
_BATCH_FILE = re.compile(r"seq-\d+-\d+-\d+\.parquet")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of an archive. A run continues an archive only if it has the same identity.

    `where` is stored as it was written. `id` is the archive's own id.
    """

    stream: str
    id: str = ""
    filters: tuple[str, ...] = ()
    where: str | None = None
    layout: int = 1

    def __str__(self) -> str:
        only = ", ".join(map(repr, self.filters))
        parts = [f"the stream {self.stream!r}", only and f"filter {only}", self.where and f"where {self.where!r}"]
        return ", ".join(part for part in parts if part)


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest tells of the files that it commits.

    Attributes:
        rows: the number of rows.
        first: the lowest seq.
        last: the highest seq.
        written: the directory that its files were written to.
        files: the target of each file, by its name in that directory.
    """

    rows: int
    first: int
    last: int
    written: str
    files: dict[str, str]


class Manifest(Commit, frozen=True, kw_only=True):
    """The manifest of a committed batch, `batch` being its number."""

    batch: int


class Layout:
    """The directory of an archive."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @property
    def checkpoint(self) -> str:
        return f"{self.files.root}/{CHECKPOINT}"

    def open(self, identity: Identity) -> str:
        """Make the directory an archive, or continue the archive in it.

        Returns:
            The archive's id.

        Raises:
            CantKeepFiles: the directory holds something else.
            InvalidInput: it is an archive of something else, or has lost its checkpoint.
        """
        made = msgspec.structs.replace(identity, id=uuid.uuid4().hex)
        known = claim(
            self.files, _IDENTITY, made, "archive", (DIRECTORY,)
        )  # a run may have been killed before the claim
        if msgspec.structs.replace(identity, id=known.id) != known:
            raise InvalidInput(
                f"{self.files.root!r} holds an archive of {known}, and not of {identity}. Give another directory."
            )
        if self.files.names(_BATCHES) and not self.files.names(f"{CHECKPOINT}/offsets"):
            raise InvalidInput(
                f"The archive in {self.files.root!r} has lost its checkpoint, {CHECKPOINT}, and so its position. Restore the"
                " checkpoint, or start another archive."
            )
        return known.id

    def identity(self) -> Identity | None:
        """The identity of the archive, or None if the directory is no archive."""
        text = self.files.read(_IDENTITY)
        return None if text is None else msgspec.json.decode(text, type=Identity)

    def recover(self) -> None:
        """Finish the last committed batch, and delete the files of uncommitted ones.

        No other process may be writing.
        """
        numbers = self.batches()
        if numbers and (last := self.manifest(numbers[-1])):
            self.finish(last)
        self.files.remove(_WRITING)

    def batches(self) -> list[int]:
        """The numbers of the committed batches, in order."""
        return self.numbers(_BATCHES)

    def numbers(self, directory: str) -> list[int]:
        """The numbers that the files of a directory are named by, such as manifests, in order."""
        found = (name.removesuffix(".json") for name in self.files.names(directory))
        return sorted(int(name) for name in found if name.isdecimal())

    def manifest(self, batch: int) -> Manifest | None:
        """The manifest of a batch, or None if the batch is not committed."""
        text = self.files.read(_manifest_of(batch))
        return None if text is None else msgspec.json.decode(text, type=Manifest)

    def manifests(self, after: int = -1) -> Iterator[Manifest]:
        """The manifests of all committed batches after `after`, in order."""
        for batch in self.batches():
            if batch > after and (manifest := self.manifest(batch)):
                yield manifest

    def complete(self, after: int = -1) -> list[Manifest]:
        """The manifests after `after`, in order, without the last one if its files may still be moved."""
        batches = list(self.manifests(after))
        if batches and not self.in_place(batches[-1].files.values()):
            batches.pop()
        return batches

    def begin(self, batch: int) -> str:
        """The directory to write a batch's files to."""
        return f"{_WRITING}/{batch:010d}-{uuid.uuid4().hex[:8]}"

    def commit(self, batch: int, written: str, rows: int, first: int, last: int) -> Manifest:
        """Commit a batch with the files in `written`, and move them to their targets.

        Raises:
            CantKeepFiles: the files don't have `rows` rows, or another process is writing the archive.
        """
        names = self.written_files(written, rows, f"batch {batch}")
        stem = f"seq-{first:019d}-{last:019d}"
        files = {name: f"{name.rpartition('/')[0]}/{stem}-{n}.parquet" for n, name in enumerate(names)}
        manifest = Manifest(batch=batch, rows=rows, first=first, last=last, written=written, files=files)
        if not self.files.create(_manifest_of(batch), msgspec.json.encode(manifest)):
            raise self.in_use_error()
        self.finish(manifest)
        self.files.remove(written)
        return manifest

    def written_files(self, written: str, rows: int, what: str) -> list[str]:
        """The names of the files in the directory `written`, relative to it, synced.

        Args:
            written: the directory.
            rows: how many rows were written.
            what: the name of the commit, for the error message.

        Raises:
            CantKeepFiles: the files don't have `rows` rows.
        """
        names = [name for name in self.files.below(written) if name.endswith(".parquet") and not _hidden(name)]
        # Where a directory is moved file by file, a task that Spark has given up may still add its files to those of
        # the next attempt.
        if (there := sum(self.files.rows(f"{written}/{name}") for name in names)) != rows:
            raise CantKeepFiles(
                f"The files of {what} in {self.files.root!r} have {there} rows, and {rows} were written. Nothing of it is committed. Run it"
                " again."
            )
        self.files.secure([f"{written}/{name}" for name in names])
        return names

    def finish(self, manifest: Manifest) -> None:
        """Move the files of a committed batch to their targets, if they are not there yet."""
        self.move(manifest.written, manifest.files)

    def in_use_error(self) -> CantKeepFiles:
        """The error for an archive that another process is writing."""
        return CantKeepFiles(f"Another process is writing the archive in {self.files.root!r}. Run one at a time.")

    def move(self, written: str, files: Mapping[str, str]) -> None:
        """Move files from the directory `written` to their targets. Those that are there already stay."""
        for name, place in files.items():
            self.files.move(f"{written}/{name}", place)

    def in_place(self, places: Iterable[str]) -> bool:
        """Return whether all of these files exist."""
        expected = set(places)
        directories = {place.rpartition("/")[0] for place in expected}
        return expected <= {f"{directory}/{name}" for directory in directories for name in self.files.names(directory)}

    def paths(self, places: Iterable[str]) -> list[str]:
        """The paths of files, in the form that Spark gets."""
        return [f"{self.files.root}/{place}" for place in places]


def is_of_a_batch(name: str) -> bool:
    """Return whether a file of a day is named like those of batches."""
    return _BATCH_FILE.fullmatch(name) is not None


def _manifest_of(batch: int) -> str:
    return f"{_BATCHES}/{batch:010d}.json"


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))
