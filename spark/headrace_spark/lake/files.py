"""File operations of an archive, on a local disk, through Hadoop, or over Spark Connect.

All names are relative to a root, with `/` between their parts.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from headrace.model.errors import ConfigurationError, HeadraceError
from headrace_spark.session import is_connect
from headrace_spark.session.callbacks import is_interruption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_PASSWORD = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/@:\[]*:(?!\d+/)[^@]*@")  # it may have slashes, unlike a port


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
        """Move a file. Nothing happens if the source does not exist.

        Where a move is a copy and a deletion, as on object stores, a run that was killed between them
        leaves both files. Then the same call completes the move.
        """

    def rows(self, name: str) -> int:
        """The number of rows in a Parquet file, from its footer."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory and all in it, if it exists."""

    def secure(self, names: Sequence[str]) -> None:
        """Sync files, so that they survive a power cut as far as the file system can ensure that."""


def plain_url(url: str) -> str:
    """A URL as programs other than Hadoop write it, which call its `s3a` `s3`."""
    return "s3" + url.removeprefix("s3a") if url.startswith("s3a:") else url


def files_at(path: str | os.PathLike[str], spark: SparkSession) -> Files:
    """Return the files at a path or URL, as the session's executors see them.

    Raises:
        CantKeepFiles: the path is a file, or Spark does not know the file system.
        ConfigurationError: the path is a URL with a password.
    """
    text = os.fspath(path)
    if _PASSWORD.match(text):
        hidden = _PASSWORD.sub(r"\1…@", text)
        raise ConfigurationError(
            f"The path {hidden!r} has a password, which logs would show. Give it to Spark by the environment or the"
            " configuration of its file system."
        )
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
        raise CantKeepFiles(f"Files can't be stored at {text!r}: {_reason(error)}.") from error
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

    def rows(self, name: str) -> int:
        return _rows(str(self._root / name))

    def remove(self, name: str) -> None:
        place = self._root / name
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
            return
        try:
            place.unlink(missing_ok=True)
        except OSError as error:  # a listing would show its rows twice if this were ignored
            raise CantKeepFiles(f"The file {str(place)!r} can't be deleted: {error.strerror}.") from error

    def secure(self, names: Sequence[str]) -> None:
        for name in names:
            _sync(self._root / name)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rows(file: Any) -> int:
    import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]

    return int(pq.read_metadata(file).num_rows)


Method = TypeVar("Method", bound=Callable[..., Any])


def _in_a_sentence(method: Method) -> Method:
    """A method whose errors of a remote file system are raised as `CantKeepFiles`. Interruptions stay, since Spark
    looks for them."""

    @wraps(method)
    def call(self: Files, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            of_files = hasattr(error, "java_exception") or isinstance(error, OSError)
            if not of_files or isinstance(error, ConnectionError) or is_interruption(str(error)):
                raise  # a lost connection is that to Spark's Java
            raise CantKeepFiles(f"Files in {self.root!r} can't be read or written: {_reason(error)}.") from error

    return cast(Method, call)


def _reason(error: Exception) -> str:
    """The first line of what a file system says, without the name of Java's class."""
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.getMessage() or java.toString())
    return next((line.strip().rstrip(".") for line in text.splitlines() if line.strip()), "no reason is given")


class HadoopFiles:
    """Files of any file system that Hadoop supports, accessed through Spark's JVM."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._new_path = jvm.org.apache.hadoop.fs.Path
        given = self._new_path(root)
        self._files = given.getFileSystem(self._configuration)
        self._path = self._files.makeQualified(given)
        self.root = str(self._path.toString())
        self._context = _context(jvm, self._path, self._configuration)
        self._no_options = spark._sc._gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 0)  # type: ignore[union-attr]
        self._to_bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._parquet = jvm.org.apache.parquet.hadoop
        if self._files.exists(self._path) and not self._files.getFileStatus(self._path).isDirectory():
            raise CantKeepFiles(f"The path {self.root!r} is a file. Give a directory, or a path that does not exist.")

    def _at(self, name: str) -> Any:
        return self._new_path(self._path, name) if name else self._path

    @_in_a_sentence
    def names(self, directory: str = "") -> list[str]:
        place = self._at(directory)
        if not self._files.exists(place):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(place))

    @_in_a_sentence
    def below(self, directory: str) -> list[str]:
        top = self._at(directory)
        if not self._files.exists(top):
            return []
        base = str(self._files.makeQualified(top).toString()) + "/"
        found, all_files = [], self._files.listFiles(top, True)
        while all_files.hasNext():
            found.append(str(all_files.next().getPath().toString()).removeprefix(base))
        return sorted(found)

    @_in_a_sentence
    def read(self, name: str) -> bytes | None:
        place = self._at(name)
        if not self._files.exists(place):
            return None
        stream = self._files.open(place)
        try:
            return bytes(self._to_bytes(stream))
        finally:
            stream.close()

    @_in_a_sentence
    def create(self, name: str, content: bytes) -> bool:
        target = self._at(name)
        draft = self._new_path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        stream = self._files.create(draft, False)
        try:
            stream.write(content)
            if stream.hasCapability("hsync"):  # object stores have none, and keep a file when it is closed
                stream.hsync()
        finally:
            stream.close()
        created = self._rename_to_new(draft, target)
        if not created:
            self._files.delete(draft, False)
        return created

    def _rename_to_new(self, draft: Any, target: Any) -> bool:
        from py4j.protocol import Py4JJavaError

        if self._context is None:
            return not self._files.exists(target) and bool(self._files.rename(draft, target))
        try:
            self._context.rename(draft, target, self._no_options)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in error.java_exception.getClass().getName():
                return False
            raise
        return True

    @_in_a_sentence
    def move(self, source: str, target: str) -> None:
        origin, place = self._at(source), self._at(target)
        if not self._files.exists(origin):
            return
        if self._files.exists(place):
            if self._length(place) == self._length(origin):  # a previous run copied it, and did not come to delete it
                self._files.delete(origin, False)
                return
            self._files.delete(place, False)
        self._files.mkdirs(place.getParent())
        if not self._files.rename(origin, place):
            raise CantKeepFiles(f"The file {str(origin.toString())!r} can't be moved to {str(place.toString())!r}.")

    def _length(self, place: Any) -> int:
        return int(self._files.getFileStatus(place).getLen())

    @_in_a_sentence
    def rows(self, name: str) -> int:
        place = self._parquet.util.HadoopInputFile.fromPath(self._at(name), self._configuration)
        reader = self._parquet.ParquetFileReader.open(place)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    @_in_a_sentence
    def remove(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def secure(self, names: Sequence[str]) -> None:
        """Do nothing. Such file systems sync a file when it is closed."""


def _context(jvm: Any, path: Any, configuration: Any) -> Any:
    """Hadoop's FileContext, whose rename can't replace a file. None for a file system that has none, as Spark's
    checkpoints may be on, too."""
    from py4j.protocol import Py4JJavaError

    try:
        return jvm.org.apache.hadoop.fs.FileContext.getFileContext(path.toUri(), configuration)
    except Py4JJavaError as error:
        if "UnsupportedFileSystemException" in error.java_exception.getClass().getName():
            return None
        raise


class ArrowFiles:
    """Files of a URL, accessed through pyarrow. It is for Spark Connect, where there is no JVM.

    A file is created by one write, since object stores show a file only when it is complete. If two processes create
    the same file at the same time, the later one wins. Only one process at a time may therefore write an archive, as
    with Spark's own checkpoints.
    """

    def __init__(self, url: str) -> None:
        from pyarrow import ArrowInvalid, fs  # type: ignore[import-untyped, unused-ignore]

        try:
            self._files, self._base = fs.FileSystem.from_uri(plain_url(url))
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

    @_in_a_sentence
    def names(self, directory: str = "") -> list[str]:
        return sorted(info.base_name for info in self._found(directory, recursive=False))

    @_in_a_sentence
    def below(self, directory: str) -> list[str]:
        base = self._at(directory) + "/"
        return sorted(info.path.removeprefix(base) for info in self._found(directory, recursive=True) if info.is_file)

    @_in_a_sentence
    def read(self, name: str) -> bytes | None:
        try:
            with self._files.open_input_stream(self._at(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    @_in_a_sentence
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

    @_in_a_sentence
    def move(self, source: str, target: str) -> None:
        from pyarrow import fs

        origin, place = self._at(source), self._at(target)
        if self._files.get_file_info(origin).type != fs.FileType.NotFound:  # S3 has no separate error for that
            self._files.create_dir(place.rpartition("/")[0], recursive=True)
            self._files.move(origin, place)

    @_in_a_sentence
    def rows(self, name: str) -> int:
        with self._files.open_input_file(self._at(name)) as file:
            return _rows(file)

    @_in_a_sentence
    def remove(self, name: str) -> None:
        place = self._at(name)
        with suppress(FileNotFoundError):
            (self._files.delete_file if self._files.get_file_info(place).is_file else self._files.delete_dir)(place)

    def secure(self, names: Sequence[str]) -> None:
        """Do nothing. Such file systems sync a file when it is closed."""
