"""File operations of an archive, on a local disk, through Hadoop, or over Spark Connect.

All names are relative to a root, with `/` between their parts.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.model.errors import HeadraceError
from headrace_spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")


class CantKeepFiles(HeadraceError):
    """Files can't be stored at the path: no directory, an unknown file system, or no permission."""

    exit_code = 73  # EX_CANTCREAT


class Files(Protocol):
    """Files below a root directory.

    Attributes:
        root: the root, in the form that Spark gets.
    """

    root: str

    def names(self, directory: str = "") -> list[str]:
        """The names in a directory, sorted. Empty if the directory does not exist."""

    def below(self, directory: str) -> list[str]:
        """All files below a directory, relative to it, sorted."""

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None if it does not exist."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file atomically, so that readers see all of it or none.

        Returns False and leaves the file unchanged if it exists.
        """

    def move(self, source: str, target: str) -> None:
        """Move a file atomically. Nothing happens if the source does not exist."""

    def remove(self, directory: str) -> None:
        """Remove a directory and all in it, if it exists."""

    def secure(self, names: Sequence[str]) -> None:
        """Sync files, so that they survive a power cut as far as the file system can ensure that."""


def files_at(path: str | os.PathLike[str], spark: SparkSession) -> Files:
    """Return the files at a path or URL, as the session's executors see them.

    Raises:
        CantKeepFiles: the path is a file, or Spark does not know the file system.
    """
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    if is_connect(spark):
        files: Files = LocalFiles(text) if scheme is None or scheme[1] == "file" else ArrowFiles(text)
    else:
        files = _of_hadoop(text, spark)
    return files


def _of_hadoop(text: str, spark: SparkSession) -> Files:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        hadoop = HadoopFiles(text, spark)
    except Py4JJavaError as error:
        reason = str(error.java_exception.getMessage()).splitlines()[0]
        raise CantKeepFiles(f"Files can't be stored at {text!r}: {reason}.") from error
    if not hadoop.root.startswith("file:"):
        return hadoop
    # A relative path refers to this process's directory. The JVM may have another one.
    return LocalFiles(hadoop.root if _SCHEME.match(text) else text)


class LocalFiles:
    """Files on this machine, or on a disk that all machines of the cluster share under the same path."""

    def __init__(self, root: str) -> None:
        self._root = Path(root.removeprefix("file://").removeprefix("file:")).absolute()
        self.root = f"file://{self._root}"
        if self._root.exists() and not self._root.is_dir():
            raise CantKeepFiles(
                f"The path {str(self._root)!r} is a file. Give a directory, or a path that does not exist."
            )

    def names(self, directory: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self._root / directory))
        except FileNotFoundError:
            return []

    def below(self, directory: str) -> list[str]:
        top = self._root / directory
        return sorted(str(Path(place, name).relative_to(top)) for place, _, names in os.walk(top) for name in names)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> bool:
        target = self._root / name
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content)
            _sync(draft)
            os.link(draft, target)  # fails if the target exists, unlike a rename
        except FileExistsError:
            return False
        except OSError as error:
            raise CantKeepFiles(f"The file {str(target)!r} can't be written: {error.strerror}.") from error
        finally:
            with suppress(OSError):
                draft.unlink()
        _sync(target.parent)
        return True

    def move(self, source: str, target: str) -> None:
        place = self._root / target
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            os.replace(self._root / source, place)

    def remove(self, directory: str) -> None:
        shutil.rmtree(self._root / directory, ignore_errors=True)

    def secure(self, names: Sequence[str]) -> None:
        for name in names:
            _sync(self._root / name)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles:
    """Files of any file system that Hadoop supports, accessed through Spark's JVM."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._new_path = jvm.org.apache.hadoop.fs.Path
        given = self._new_path(root)
        self._files = given.getFileSystem(configuration)
        self._path = self._files.makeQualified(given)
        self.root = str(self._path.toString())
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._path.toUri(), configuration)
        self._no_options = spark._sc._gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 0)  # type: ignore[union-attr]
        self._to_bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        if self._files.exists(self._path) and not self._files.getFileStatus(self._path).isDirectory():
            raise CantKeepFiles(f"The path {self.root!r} is a file. Give a directory, or a path that does not exist.")

    def _at(self, name: str) -> Any:
        return self._new_path(self._path, name) if name else self._path

    def names(self, directory: str = "") -> list[str]:
        place = self._at(directory)
        if not self._files.exists(place):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(place))

    def below(self, directory: str) -> list[str]:
        top = self._at(directory)
        if not self._files.exists(top):
            return []
        database_connection = str(self._files.makeQualified(top).toString()) + "/"
        found, all_files = [], self._files.listFiles(top, True)
        while all_files.hasNext():
            found.append(str(all_files.next().getPath().toString()).removeprefix(database_connection))
        return sorted(found)

    def read(self, name: str) -> bytes | None:
        place = self._at(name)
        if not self._files.exists(place):
            return None
        stream = self._files.open(place)
        try:
            return bytes(self._to_bytes(stream))
        finally:
            stream.close()

    def create(self, name: str, content: bytes) -> bool:
        from py4j.protocol import Py4JJavaError

        target = self._at(name)
        draft = self._new_path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        stream = self._files.create(draft, False)
        try:
            stream.write(content)
            stream.hsync()
        finally:
            stream.close()
        try:
            self._context.rename(draft, target, self._no_options)
        except Py4JJavaError as error:
            self._files.delete(draft, False)
            if "FileAlreadyExistsException" in error.java_exception.getClass().getName():
                return False
            raise
        return True

    def move(self, source: str, target: str) -> None:
        origin, place = self._at(source), self._at(target)
        if self._files.exists(origin):
            self._files.mkdirs(place.getParent())
            self._files.rename(origin, place)

    def remove(self, directory: str) -> None:
        self._files.delete(self._at(directory), True)

    def secure(self, names: Sequence[str]) -> None:
        """Do nothing. Such file systems sync a file when it is closed."""


class ArrowFiles:
    """Files of a URL, accessed through pyarrow. It is for Spark Connect, where there is no JVM.

    A file is created by one write, since object stores show a file only when it is complete. If two
    processes create the same file at once, the later one wins. So only one process at a time may
    write an archive, as with Spark's own checkpoints.
    """

    def __init__(self, url: str) -> None:
        from pyarrow import ArrowInvalid, fs  # type: ignore[import-untyped, unused-ignore]

        try:
            self._files, self._base = fs.FileSystem.from_uri(url)
        except (ArrowInvalid, OSError) as error:
            raise CantKeepFiles(f"Files can't be stored at {url!r} over Spark Connect: {error}.") from error
        self.root = url.rstrip("/")
        if self._files.get_file_info(self._base).type == fs.FileType.File:
            raise CantKeepFiles(f"The path {url!r} is a file. Give a directory, or a path that does not exist.")

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _found(self, directory: str, recursive: bool) -> list[Any]:
        from pyarrow import fs

        selector = fs.FileSelector(self._at(directory), allow_not_found=True, recursive=recursive)
        return list(self._files.get_file_info(selector))

    def names(self, directory: str = "") -> list[str]:
        return sorted(info.base_name for info in self._found(directory, recursive=False))

    def below(self, directory: str) -> list[str]:
        database_connection = self._at(directory) + "/"
        return sorted(
            info.path.removeprefix(database_connection)
            for info in self._found(directory, recursive=True)
            if info.is_file
        )

    def read(self, name: str) -> bytes | None:
        try:
            with self._files.open_input_stream(self._at(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> bool:
        from pyarrow import fs

        target = self._at(name)
        if self._files.get_file_info(target).type != fs.FileType.NotFound:
            return False
        self._files.create_dir(target.rpartition("/")[0], recursive=True)
        draft = f"{target.rpartition('/')[0]}/.{uuid.uuid4().hex}"
        with self._files.open_output_stream(draft) as stream:
            stream.write(content)
        self._files.move(draft, target)
        return True

    def move(self, source: str, target: str) -> None:
        place = self._at(target)
        self._files.create_dir(place.rpartition("/")[0], recursive=True)
        with suppress(FileNotFoundError):
            self._files.move(self._at(source), place)

    def remove(self, directory: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_dir(self._at(directory))

    def secure(self, names: Sequence[str]) -> None:
        """Do nothing. Such file systems sync a file when it is closed."""
