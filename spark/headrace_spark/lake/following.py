"""Table formats that follow an archive: Delta Lake and others show its files as a table.

The manifests of the archive commit its batches and merges, and a table follows them. Each commit of a table stores the
position that the table then has, in the same transaction. A batch is thus in the table once, whenever a run is killed,
and of two processes that commit the same batch one finds that the table has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import ClassVar, Protocol

from headrace.model.errors import ConfigurationError
from headrace_spark.lake.files import CantKeepFiles
from headrace_spark.lake.layout import DIRECTORY, Layout
from headrace_spark.lake.merges import Merge, Merges, current

_CLASSES = {
    "delta": "headrace_spark.lake.delta:DeltaLog",
    "iceberg": "headrace_spark.lake.iceberg:IcebergTable",
    "ducklake": "headrace_spark.lake.ducklake:DuckLakeTable",
}
FORMATS = tuple(_CLASSES)
SCHEMES = ("file", "s3", "s3a", "abfs", "abfss", "gs")
"""The file systems that Arrow and Delta Lake know."""

_KEPT = f"{DIRECTORY}/tables"  # a file for each format of which the archive has a table
_TRIES = 5
_RESERVED = frozenset("#?%")
"""The libraries of Delta and Iceberg parse the root as a URL, and would write to another directory."""


@dataclass(frozen=True)
class Archive:
    """An archive that tables follow. It holds only plain values.

    Attributes:
        id: the archive's id.
        stream: the name of its stream.
        root: its directory, in the form that Spark gets.
        database: the URL of the stream's database.
    """

    id: str
    stream: str
    root: str
    database: str = field(repr=False)  # it may have a password


@dataclass(frozen=True)
class Position:
    """The last batch and the last merge of an archive that a table has."""

    batch: int
    merge: int = -1


class CommittedMeanwhile(CantKeepFiles):
    """Another process committed to the table."""


def check_known(old: Iterable[str], known: Iterable[str], root: str) -> None:
    """Raise `CantKeepFiles` if a table does not know all files that are to be replaced."""
    if lacking := set(old) - set(known):
        raise CantKeepFiles(
            f"The table of the archive in {root!r} does not have the file {min(lacking)!r}. Another program has compacted it, and rows"
            " would be there twice. Drop the table. The next run of the archive creates it again."
        )


class Table(Protocol):
    """A table of one format that follows an archive. A file's name is its path relative to the root.

    Each of the last three methods is one transaction, which also stores the table's new position. They raise
    `CommittedMeanwhile` if the position is not that of the last call of `position` any more.

    Attributes:
        schemes: the file systems to which it can be written.
    """

    schemes: ClassVar[tuple[str, ...]]

    def __init__(self, archive: Archive) -> None: ...

    @staticmethod
    def check() -> None:
        """Raise `ConfigurationError` if a package is missing."""

    def position(self) -> Position | None:
        """The position of the table. None if it has no batch, or there is no table."""

    def create(self, files: Sequence[str], position: Position) -> None:
        """Create the table with these files."""

    def append(self, files: Sequence[str], position: Position) -> None:
        """Add files with new rows."""

    def replace(self, old: Sequence[str], new: Sequence[str], position: Position) -> None:
        """Replace files by others with the same rows. Raises `CantKeepFiles` if the table does not have all of them."""


def check_formats(names: Iterable[str], root: str) -> None:
    """Check that tables of these formats can be kept at a root.

    Raises:
        ConfigurationError: there is no such format, it can't be written to this file system, or a package is
            missing.
    """
    for name in names:
        if name not in _CLASSES:
            raise ConfigurationError(f"The table format {name!r} is unknown. It must be one of {', '.join(FORMATS)}.")
        if reserved := _RESERVED.intersection(root):
            raise ConfigurationError(
                f"A table can't be written to {root!r}, because the path has the character {min(reserved)!r}, which is special in URLs."
                " Archive to another path, or without a table."
            )
        schemes = _class(name).schemes
        if root.partition(":")[0] not in schemes:
            raise ConfigurationError(
                f"A table of the format {name} can't be written to {root!r}. It can be kept on {', '.join(schemes)}. Archive without it."
            )
        _class(name).check()


def _class(name: str) -> type[Table]:
    module, _, class_name = _CLASSES[name].partition(":")
    found: type[Table] = getattr(import_module(module), class_name)
    return found


def update_tables(archive: Archive, layout: Layout, names: Iterable[str], *, create: bool = True) -> None:
    """Commit to tables the batches and merges that they don't have yet.

    Args:
        archive: the archive.
        layout: its directory.
        names: the formats of the tables.
        create: whether to create those that don't exist.

    Raises:
        CantKeepFiles: a table can't be written, or does not exist.
    """
    for name in names:
        if not follow(_class(name)(archive), layout, create):
            raise CantKeepFiles(
                f"The archive in {archive.root!r} has no {name} table in this database or catalog. Give the database of the archive, or"
                f" run the archive with --table {name}, which creates it. Delete the file {_KEPT}/{name} if there is no such table any more."
            )


def keep_tables(archive: Archive, layout: Layout, names: Iterable[str]) -> None:
    """Record the formats of the tables that an archive has, so that merges know them.

    Raises:
        CantKeepFiles: a new table can't be read, or is of another archive. Then it is not recorded, because merges would fail.
    """
    existing = existing_formats(layout)
    for name in names:
        if name not in existing:
            _class(name)(archive).position()
        layout.files.create(f"{_KEPT}/{name}", b"")


def existing_formats(layout: Layout) -> list[str]:
    """The formats of the tables that an archive has."""
    kept = layout.files.names(_KEPT)
    if "_delta_log" in layout.files.names():  # an earlier version has made it
        kept.append("delta")
    return [name for name in FORMATS if name in kept]


def follow(table: Table, layout: Layout, create: bool = True) -> bool:
    """Commit to a table the batches and merges that it does not have yet.

    Returns:
        False if the table does not exist, and was not to be created although there are batches for it.

    Raises:
        CantKeepFiles: the table can't be written.
    """
    for _ in range(_TRIES - 1):
        with suppress(CommittedMeanwhile):
            return _follow(table, layout, create)
    return _follow(table, layout, create)


def _follow(table: Table, layout: Layout, create: bool) -> bool:
    known = table.position()
    position = known or Position(-1)
    merges = Merges(layout).all(position.merge)
    batches = layout.complete(position.batch)
    batch = batches[-1].batch if batches else position.batch
    merge = merges[-1].number if merges else position.merge
    if known is None:
        if batches and create:
            table.create([part.place for part in current(batches, merges)], Position(batch, merge))
        return create or not batches
    if batches:
        table.append([place for found in batches for place in found.files.values()], Position(batch, position.merge))
    if merges:
        old, new = _replaced(merges)
        table.replace(old, new, Position(batch, merge))
    return True


def _replaced(merges: Sequence[Merge]) -> tuple[list[str], list[str]]:
    """The files that merges together remove, and those that they add."""
    old: list[str] = []
    new: dict[str, None] = {}
    for merge in merges:
        old += [place for place in merge.replaces if place not in new]
        new = {place: None for place in new if place not in merge.replaces} | dict.fromkeys(merge.files.values())
    return old, list(new)
