"""The log of an archive's merges: larger files replace small ones, and each message is in the archive once at any
moment.

      _headrace/merged/0000000003-1a2b3c4d/day=2026-11-21/part-….parquet     merged files, hidden from a listing
      _headrace/merges/0000000003.json          a committed merge: its files, and those that they replace
      _headrace/merges/0000000003.announced     when all tables had the merge

A merge is committed by its manifest, like a batch. Readers of the manifests, and the tables, use its files from then
on. The files that it replaces stay for a grace time, because readers may have opened them. Until they are deleted, a
listing of the archive shows them, so the merged files are hidden. After the grace time a second merge follows: the
hidden files are written again, the small files are deleted, and the copies become visible in the directory of the day.
The hidden files stay for another grace time. A listing thus shows no row twice. Between the deletion and the end of
that merge it lacks rows, as while a batch is moved.

The files of the last batch are never merged: a run of the archive may still be moving them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import NamedTuple

import msgspec

from headrace_spark.lake.layout import DIRECTORY, Commit, Layout, Manifest

_MERGED = f"{DIRECTORY}/merged"
_MERGES = f"{DIRECTORY}/merges"


class Merge(Commit, frozen=True, kw_only=True):
    """The manifest of a committed merge, of files of one day.

    Attributes:
        number: the number of the merge.
        replaces: the files that it replaces.
    """

    number: int
    replaces: tuple[str, ...]

    @property
    def hidden(self) -> bool:
        """Whether a listing of the archive does not show its files."""
        return any(place.startswith(DIRECTORY) for place in self.files.values())


class Written(NamedTuple):
    """Files that are written and not committed yet, with the names that they have in their directory."""

    directory: str
    names: list[str]
    rows: int
    first: int
    last: int


class Part(NamedTuple):
    """A file of an archive, with a range that has all of its seqs."""

    place: str
    first: int
    last: int


class Merges:
    """The merges of an archive."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._files = layout.files

    def numbers(self) -> list[int]:
        """The numbers of the committed merges, in order."""
        return self.layout.numbers(_MERGES)

    def all(self, after: int = -1) -> list[Merge]:
        """The committed merges after `after`, in order, without one whose files are not in their places yet."""
        texts = [self._files.read(_manifest_of(number)) for number in self.numbers() if number > after]
        merges = [msgspec.json.decode(text, type=Merge) for text in texts if text is not None]
        if merges and not self.layout.in_place(merges[-1].files.values()):
            merges.pop()
        return merges

    def begin(self) -> str:
        """The directory to write the next merge's files to."""
        return f"{_MERGED}/{self._next():010d}-{uuid.uuid4().hex[:8]}"

    def commit(self, written: Written, replaces: Sequence[str], *, visible: bool) -> Merge:
        """Commit a merge.

        Args:
            written: its files.
            replaces: the files that they replace.
            visible: whether to move its files to where a listing shows them.

        Raises:
            CantKeepFiles: another process merges the archive.
        """
        number = self._next()
        stem = f"seq-{written.first:019d}-{written.last:019d}-merged-{number}"
        files = {
            name: f"{name.rpartition('/')[0]}/{stem}-{n}.parquet" if visible else f"{written.directory}/{name}"
            for n, name in enumerate(written.names)
        }
        merge = Merge(
            number=number,
            rows=written.rows,
            first=written.first,
            last=written.last,
            written=written.directory,
            files=files,
            replaces=tuple(replaces),
        )
        if not self._files.create(_manifest_of(number), msgspec.json.encode(merge)):
            raise self.layout.in_use_error()
        self.finish()
        return merge

    def finish(self) -> None:
        """Move the files of the last merge to their places, if they are not there yet."""
        numbers = self.numbers()
        text = self._files.read(_manifest_of(numbers[-1])) if numbers else None
        if text is not None:
            merge = msgspec.json.decode(text, type=Merge)
            if not merge.hidden:
                self.layout.move(merge.written, merge.files)

    def _next(self) -> int:
        return max(self.numbers(), default=-1) + 1

    def announce(self, now: datetime) -> None:
        """Record for all merges that the tables have them, so that the grace time of what they replace begins."""
        known = set(self._files.names(_MERGES))
        for number in self.numbers():
            if _announcement_of(number).rpartition("/")[2] not in known:
                self._files.create(_announcement_of(number), now.isoformat().encode())

    def due(self, merges: Iterable[Merge], time: datetime) -> list[Merge]:
        """The merges which the tables had at a time, and whose work is not done: hidden files still exist that they
        have, or that they replace."""
        present = self._directories()
        pending = (
            merge for merge in merges if (merge.written if merge.hidden else _directory(merge.replaces[0])) in present
        )
        return [merge for merge in pending if (announced := self._announced(merge)) is not None and announced <= time]

    def _announced(self, merge: Merge) -> datetime | None:
        text = self._files.read(_announcement_of(merge.number))
        return None if text is None else datetime.fromisoformat(text.decode())

    def _directories(self) -> set[str]:
        return {f"{_MERGED}/{name}" for name in self._files.names(_MERGED)}

    def sweep(self, merges: Iterable[Merge], unused: Iterable[Merge]) -> None:
        """Delete the directories of merges that were not committed, and those of `unused` ones.

        No other process may be merging.
        """
        used = {merge.written for merge in merges if merge.hidden} - {merge.written for merge in unused}
        for directory in sorted(self._directories() - used):
            self._files.remove(directory)


def current(batches: Iterable[Manifest], merges: Iterable[Merge]) -> list[Part]:
    """The files that have the rows of these batches, each once, in the order of the batches.

    The merges must have been listed before the batches. Then they have only rows of these.
    """
    parts: dict[str, Part] = {}
    replaced: dict[str, list[Part]] = {}
    for merge in merges:
        new = [Part(place, merge.first, merge.last) for place in merge.files.values()]
        replaced |= dict.fromkeys(merge.replaces, new)
    for batch in batches:
        waiting = [Part(place, batch.first, batch.last) for place in batch.files.values()]
        while waiting:
            part = waiting.pop(0)
            if part.place in replaced:
                waiting += replaced[part.place]
            else:
                parts[part.place] = part
    return list(parts.values())


def _directory(place: str) -> str:
    """The directory of the merge that wrote a hidden file."""
    return "/".join(place.split("/")[:3])


def day_of(place: str) -> date:
    """The day of a file, from its directory."""
    (name,) = (part for part in place.split("/") if part.startswith("day="))
    return date.fromisoformat(name.removeprefix("day="))


def is_of_closed_day(directory: str, now: datetime) -> bool:
    """Return whether a directory of an archive is that of a day which is over, in UTC. Others are no part of the
    archive."""
    try:
        return directory.startswith("day=") and day_of(directory) < now.astimezone(UTC).date()
    except ValueError:
        return False


def _manifest_of(number: int) -> str:
    return f"{_MERGES}/{number:010d}.json"


def _announcement_of(number: int) -> str:
    return f"{_MERGES}/{number:010d}.announced"
