"""The directory layout of an archive, and the commit of a batch.

    archive/
      day=2026-11-21/seq-0000000000000000001-0000000000000100000-0.parquet    the data, for all
      readers
      _headrace/archive.json          the identity of the archive: its stream and filters
      _headrace/checkpoint/           Spark's own checkpoint
      _headrace/batches/0000000012.json     a committed batch: its rows, its seqs, its files
      _headrace/writing/              files of a batch that is being written

Spark's own file sink is exactly-once only for readers that know its log. Other readers list the
directory, and see the leftovers of a killed run. Here a batch's files are first written aside. Then
its manifest is created atomically, with the target of each file. From then on the batch is
committed. Then the files are moved. A run that starts after a kill moves the files that are not
moved yet, and deletes those that no manifest names. A plain listing thus never has a row twice, and
after the next run no row is missing. Readers that follow the Hive convention (Spark, DuckDB,
pyarrow, Trino) skip names that begin with `_`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import msgspec

from headrace.model.errors import InvalidInput
from headrace_spark.pipelines.claims import claim
from headrace_spark.pipelines.files import CantKeepFiles, Files

DIRECTORY = "_headrace"
CHECKPOINT = f"{DIRECTORY}/checkpoint"
_BATCHES = f"{DIRECTORY}/batches"
_WRITING = f"{DIRECTORY}/writing"
_IDENTITY = f"{DIRECTORY}/archive.json"


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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a committed batch.

    Attributes:
        batch: the number of the batch.
        rows: the number of rows.
        first: the lowest seq.
        last: the highest seq.
        written: the directory that its files were written to.
        files: the target of each file, by its name in that directory.
    """

    batch: int
    rows: int
    first: int
    last: int
    written: str
    files: dict[str, str]


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
            self._move(last)
        self.files.remove(_WRITING)

    def batches(self) -> list[int]:
        """The numbers of the committed batches, in order."""
        found = (name.removesuffix(".json") for name in self.files.names(_BATCHES))
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

    def begin(self, batch: int) -> str:
        """The directory to write a batch's files to."""
        return f"{_WRITING}/{batch:010d}-{uuid.uuid4().hex[:8]}"

    def commit(self, batch: int, written: str, rows: int, first: int, last: int) -> Manifest:
        """Commit a batch with the files in `written`, and move them to their targets.

        Raises:
            CantKeepFiles: the files don't have `rows` rows, or another process is writing the archive.
        """
        found = [name for name in self.files.below(written) if name.endswith(".parquet") and not _hidden(name)]
        # Where a directory is moved file by file, a task that Spark has given up may still add its files to those of the next attempt.
        if (there := sum(self.files.rows(f"{written}/{name}") for name in found)) != rows:
            raise CantKeepFiles(
                f"The files of batch {batch} in {self.files.root!r} have {there} rows, and {rows} were written. Nothing of the batch is"
                " archived. Run it again."
            )
        stem = f"seq-{first:019d}-{last:019d}"
        files = {name: f"{name.rpartition('/')[0]}/{stem}-{n}.parquet" for n, name in enumerate(found)}
        self.files.secure([f"{written}/{name}" for name in found])
        manifest = Manifest(batch=batch, rows=rows, first=first, last=last, written=written, files=files)
        if not self.files.create(_manifest_of(batch), msgspec.json.encode(manifest)):
            raise self.in_use_error()
        self._move(manifest)
        self.files.remove(written)
        return manifest

    def finish(self, manifest: Manifest) -> None:
        """Move the files of a committed batch to their targets, if they are not there yet."""
        self._move(manifest)

    def in_use_error(self) -> CantKeepFiles:
        """The error for an archive that another process is writing."""
        return CantKeepFiles(f"Another process is writing the archive in {self.files.root!r}. Run one at a time.")

    def _move(self, manifest: Manifest) -> None:
        for name, place in manifest.files.items():
            self.files.move(f"{manifest.written}/{name}", place)

    def paths(self, manifest: Manifest) -> list[str]:
        """The paths of a batch's files, in the form that Spark gets."""
        return [f"{self.files.root}/{place}" for place in manifest.files.values()]


def _manifest_of(batch: int) -> str:
    return f"{_BATCHES}/{batch:010d}.json"


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))
