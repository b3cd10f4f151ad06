"""How an archive lies in its directory, and how a batch of it is committed.

    archive/
      day=2026-11-21/seq-0000000000000000001-0000000000000100000-0.parquet    what everybody reads
      _headrace/archive.json          which stream this is an archive of
      _headrace/checkpoint/           Spark's own
      _headrace/batches/0000000012.json     a batch that is committed: its rows, its seqs, its files
      _headrace/writing/              files of a batch that is being written

Spark's own sink for files is exactly-once only for readers that know its log; others, who list the directory, see what a killed run has left.
Here a batch's files are written aside; then its manifest is made, in one step, which says where each is to go: from then on the batch is
committed. Then they are moved. Whoever comes after a kill moves what has not been moved yet, and throws away what no manifest names. So a plain
listing has no row twice at any time, and after the next run none is missing. Readers that go by the Hive convention (Spark, DuckDB, pyarrow,
Trino) pass over names that begin with `_`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import msgspec

from headrace.model.errors import InvalidInput
from headrace_spark.pipelines.claims import claimed
from headrace_spark.pipelines.files import CantKeepFiles, Files

OURS = "_headrace"
CHECKPOINT = f"{OURS}/checkpoint"
_BATCHES = f"{OURS}/batches"
_WRITING = f"{OURS}/writing"
_IDENTITY = f"{OURS}/archive.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive is of. An archive goes on with the same; a `where` is kept as it was written. `id` is its own."""

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
    """A batch that is committed.

    Attributes:
        batch: its number.
        rows: how many there are in it.
        first: the lowest seq.
        last: the highest.
        written: where its files were written.
        files: what each was called there, and where it belongs.
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
        """Make the directory an archive, or go on with it.

        Returns:
            The archive's id.

        Raises:
            CantKeepFiles: there is something else in it.
            InvalidInput: it is an archive of something else, or has lost its checkpoint.
        """
        made = msgspec.structs.replace(identity, id=uuid.uuid4().hex)
        known = claimed(self.files, _IDENTITY, made, "archive", (OURS,))  # a run may have been killed before the claim
        if msgspec.structs.replace(identity, id=known.id) != known:
            raise InvalidInput(
                f"In {self.files.root!r} is an archive of {known}, and not of {identity}: give another directory."
            )
        if self.files.names(_BATCHES) and not self.files.names(f"{CHECKPOINT}/offsets"):
            raise InvalidInput(
                f"The archive in {self.files.root!r} has lost its checkpoint, {CHECKPOINT}, so nobody knows where to go on: bring that"
                " back, or begin another archive."
            )
        return known.id

    def identity(self) -> Identity | None:
        """What this is an archive of; None if it is none."""
        text = self.files.read(_IDENTITY)
        return None if text is None else msgspec.json.decode(text, type=Identity)

    def recover(self) -> None:
        """Finish the last batch that was committed, and throw away what wasn't. Nobody else may be at work on it."""
        numbers = self.batches()
        if numbers and (last := self.manifest(numbers[-1])):
            self._move(last)
        self.files.remove(_WRITING)

    def batches(self) -> list[int]:
        """The numbers of the batches that are committed, in order."""
        found = (name.removesuffix(".json") for name in self.files.names(_BATCHES))
        return sorted(int(name) for name in found if name.isdecimal())

    def manifest(self, batch: int) -> Manifest | None:
        """A batch that is committed; None if it isn't."""
        text = self.files.read(_manifest_of(batch))
        return None if text is None else msgspec.json.decode(text, type=Manifest)

    def manifests(self, after: int = -1) -> Iterator[Manifest]:
        """All batches that are committed, in order, from the one behind `after`."""
        for batch in self.batches():
            if batch > after and (manifest := self.manifest(batch)):
                yield manifest

    def begin(self, batch: int) -> str:
        """Where to write a batch's files."""
        return f"{_WRITING}/{batch:010d}-{uuid.uuid4().hex[:8]}"

    def commit(self, batch: int, written: str, rows: int, first: int, last: int) -> Manifest:
        """Commit a batch whose files are in `written`, and put them where they belong."""
        found = [name for name in self.files.below(written) if name.endswith(".parquet") and not _hidden(name)]
        stem = f"seq-{first:019d}-{last:019d}"
        files = {name: f"{name.rpartition('/')[0]}/{stem}-{n}.parquet" for n, name in enumerate(found)}
        self.files.secure([f"{written}/{name}" for name in found])
        manifest = Manifest(batch=batch, rows=rows, first=first, last=last, written=written, files=files)
        if not self.files.create(_manifest_of(batch), msgspec.json.encode(manifest)):
            raise self.taken()
        self._move(manifest)
        self.files.remove(written)
        return manifest

    def finish(self, manifest: Manifest) -> None:
        """Put the files of a committed batch where they belong, if they aren't there."""
        self._move(manifest)

    def taken(self) -> CantKeepFiles:
        """What is raised when it is another process's."""
        return CantKeepFiles(
            f"Another process is at work on the archive in {self.files.root!r}: let one run at a time."
        )

    def _move(self, manifest: Manifest) -> None:
        for name, place in manifest.files.items():
            self.files.move(f"{manifest.written}/{name}", place)

    def paths(self, manifest: Manifest) -> list[str]:
        """The files of a batch, as Spark is told them."""
        return [f"{self.files.root}/{place}" for place in manifest.files.values()]


def _manifest_of(batch: int) -> str:
    return f"{_BATCHES}/{batch:010d}.json"


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))
