"""Sends code to the executors of a cluster: Headrace's own, small packages it needs, and the user's modules.

Each top-level package becomes an archive, which Spark unpacks under the package's name in a
directory that is on the import path of every worker. Data files and compiled modules thus work as they do in an
installation. A module of a single file is sent as it is. Only public interfaces of Spark are used, and they are the
same for a master and for Spark Connect.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace_spark.session.errors import SparkMisconfigured
from headrace_spark.session.settings import is_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = ("headrace", "headrace_spark")
"""Headrace's packages. They are always sent."""

PACKAGES = (
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "anyio",
    "asyncpg",
    "idna",
    "importlib_resources",
    "msgspec",
    "sniffio",
    "typing_extensions",
)
"""Packages that Headrace's need on executors. Those that this process has are sent to machines of its kind.

Not pyarrow, pandas and numpy, which Spark itself needs there, and which are large.
"""

MAX_BYTES = 100_000_000
"""Maximum size of all user modules, before they are compressed."""
MAX_FILES = 5_000
"""Maximum number of files of all user modules."""

_UNUSED_ROOMS = {"headrace": ("cli", "client", "server", "testing"), "headrace_spark": ("cli",)}
_OWN_FILES = (".py", ".so", ".sql")  # of Headrace and the packages that it needs
_SOURCES = (".c", ".h", ".pxd", ".pyc", ".pyi", ".pyo", ".pyx")  # not needed to run a package
_NO_PACKAGES = ("build", "dist", "node_modules")  # beside modules
_RESERVED = frozenset((*OWN, *PACKAGES, "numpy", "pandas", "py4j", "pyarrow", "pyspark"))
_SAME_TIME = (1980, 1, 1, 0, 0, 0)  # of all files in an archive, so that equal content makes equal archives

Files = dict[str, Path]
"""The files of a package by their names in it, or a single one under an empty name."""


class Shipment(msgspec.Struct, frozen=True):
    """The shipped files: the files of each top-level name, with the names as executors import them."""

    parts: dict[str, Files]

    @property
    def compiled(self) -> list[str]:
        """The names that contain modules which work only on machines of the same kind."""
        return sorted(name for name, files in self.parts.items() if any(one.endswith(".so") for one in files))


def gather(entries: Iterable[str], *, packages: bool = True, directory: Path | None = None) -> Shipment:
    """Find all that is to be sent.

    Args:
        entries: modules and packages of the user, by their names or as paths: a file, the
            directory of a package, or a directory with modules.
        packages: whether the packages that Headrace needs are sent as well.
        directory: where relative paths begin. None for the working directory.

    Raises:
        SparkMisconfigured: an entry does not exist, hides another module, or is too large.
    """
    parts: dict[str, Files] = {}
    for name in OWN:
        parts[name] = _of_name(name, without=_UNUSED_ROOMS[name], only=_OWN_FILES)
    parts |= _metadata("headrace")
    for name in PACKAGES if packages else ():
        if importlib.util.find_spec(name) is not None:
            parts[name] = _of_name(name, only=_OWN_FILES)
    own: dict[str, Files] = {}
    for entry in entries:
        for name, files in _of_entry(entry, directory or Path.cwd()):
            if name not in OWN:
                _check_name(name, entry)
                own[name] = {**own.get(name, {}), **files}
    _check_size(own)
    return Shipment(parts | own)


def send(spark: SparkSession, shipment: Shipment, directory: Path) -> int:
    """Send a shipment to the executors of a session. Jobs that they run from now on can import it.

    Args:
        spark: a session of a cluster, or of Spark Connect.
        directory: where the archives are kept. Executors fetch them as long as the session lives.

    Returns:
        The size of what is sent, in bytes.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    size = 0
    for name, files in sorted(shipment.parts.items()):
        path = files[""] if "" in files else packed(files, directory)
        _add(spark, str(path) if "" in files else f"{path}#{name}", archive="" not in files)
        size += path.stat().st_size
    if getattr(spark, "_sc", None) is not None:
        _arrange_driver()
    return size


def _add(spark: SparkSession, path: str, *, archive: bool) -> None:
    context = getattr(spark, "_sc", None)
    if context is None:  # Spark Connect
        spark.addArtifacts(path, archive=archive, file=not archive)
    elif archive:  # for all sessions of the process, as those of streaming queries
        context.addArchive(path)
    else:
        context.addFile(path)


def _arrange_driver() -> None:
    """Put what is sent at its place in this process and beside it, where Spark keeps a copy of it as well.

    PySpark has that directory at the front of the import path. Modules that this process imports from
    now on are its own, not the copies. Sources of streaming queries run in a separate process on this machine. Spark
    4.3.0 has it look for files of a session named `streaming_job`, in a directory that does not exist.
    """
    from pyspark import SparkFiles

    root = SparkFiles.getRootDirectory()
    if root in sys.path:
        sys.path.remove(root)
        sys.path.append(root)
    with contextlib.suppress(FileExistsError):
        (Path(root) / "streaming_job").symlink_to(".", target_is_directory=True)


def packed(files: Mapping[str, Path], directory: Path) -> Path:
    """Pack files into an archive that is named by its content. Equal files make equal archives."""
    digest = hashlib.sha256()
    draft = directory / f".{os.getpid()}.zip"
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
            info = zipfile.ZipInfo(name, _SAME_TIME)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, content)
    target = directory / f"{digest.hexdigest()[:16]}.zip"
    draft.replace(target)
    return target


def _of_entry(entry: str, directory: Path) -> Iterator[tuple[str, Files]]:
    """The top-level names that an entry stands for, with their files."""
    if not is_path(entry):
        yield entry, _of_name(entry, [str(directory)])
        return
    path = (directory / entry).resolve()
    if path.is_file():
        yield _module_name(path), {"": path}
    elif (path / "__init__.py").is_file():
        yield path.name, _below(path)
    elif path.is_dir():
        found = [(_module_name(one), {"": one}) for one in path.glob("*.py") if _wanted(one)]
        found += [(one.name, files) for one in path.iterdir() if _is_package(one) and (files := _below(one))]
        if not found:
            raise SparkMisconfigured(f"There is no Python module in {str(path)!r}, which ship names.")
        yield from sorted(found)
    else:
        raise SparkMisconfigured(f"The path {entry!r}, which ship names, does not exist in {directory}.")


def _of_name(
    name: str, places: Sequence[str] = (), *, without: Sequence[str] = (), only: tuple[str, ...] = ()
) -> Files:
    """The files of a module or package that this process can import.

    Args:
        name: the name of the module or package.
        places: where it is looked for before the import path.
        without: directories in it that are left out.
        only: the endings of its files. Empty for all.
    """
    spec = None
    if name.isidentifier():
        spec = PathFinder.find_spec(name, [*places, *sys.path]) or importlib.util.find_spec(name)
    if spec is None:
        raise SparkMisconfigured(
            f"The module {name!r}, which ship names, can't be found. Write the name of a top-level module or package, or a path."
        )
    if spec.submodule_search_locations is None:
        return {"": _single_file(name, spec.origin)}
    files: Files = {}
    for place in spec.submodule_search_locations:
        files |= {key: path for key, path in _below(Path(place), only).items() if key.partition("/")[0] not in without}
    return files


def _single_file(name: str, origin: str | None) -> Path:
    path = Path(origin or "")
    if not path.is_file():
        raise SparkMisconfigured(f"The module {name!r}, which ship names, is not a file, so it can't be sent.")
    return path


def _metadata(distribution: str) -> dict[str, Files]:
    """The metadata of a distribution, by which executors know its version."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return {}
    path = Path(str(found.locate_file(f"{distribution}-{found.version}.dist-info/METADATA")))
    return {path.parent.name: {"METADATA": path}} if path.is_file() else {}


def _below(package: Path, only: tuple[str, ...] = ()) -> Files:
    """The files of a package: its code, and the data beside it. With `only`, those whose names end so.

    Nothing if there is no module among them.
    """
    found: Files = {}
    for place, directories, names in os.walk(package):
        directories[:] = sorted(name for name in directories if _may_hold_modules(Path(place, name)))
        for path in (Path(place, name) for name in names):
            if _wanted(path) and (not only or path.suffix in only):
                found[path.relative_to(package).as_posix()] = path
        if len(found) > MAX_FILES:
            raise SparkMisconfigured(
                f"{str(package)!r}, which ship names, has more than {MAX_FILES:,} files. Name the modules and packages one by one."
            )
    return found if any(name.endswith((".py", ".so")) for name in found) else {}


def _wanted(path: Path) -> bool:
    return path.suffix not in _SOURCES and not path.name.startswith(".")


def _may_hold_modules(path: Path) -> bool:
    """Whether a directory may belong to a package. An environment of Python does not."""
    return path.is_dir() and path.name != "__pycache__" and path.name[:1] != "." and not (path / "pyvenv.cfg").exists()


def _is_package(path: Path) -> bool:
    """Whether a directory beside modules may be a package."""
    return path.name.isidentifier() and path.name not in _NO_PACKAGES and _may_hold_modules(path)


def _module_name(path: Path) -> str:
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise SparkMisconfigured(
            f"{str(path)!r}, which ship names, is not a Python module. Name .py files and directories."
        )
    return path.stem


def _check_name(name: str, entry: str) -> None:
    if name in sys.stdlib_module_names or name in _RESERVED:
        owner = "Python's own" if name in sys.stdlib_module_names else "the package's"
        raise SparkMisconfigured(
            f"The module {name!r}, which ship names by {entry!r}, would hide {owner} {name!r} on executors. Rename it, or name others one by one."
        )


def _check_size(parts: Mapping[str, Files]) -> None:
    sizes = {name: sum(path.stat().st_size for path in files.values()) for name, files in parts.items()}
    count = sum(map(len, parts.values()))
    if sum(sizes.values()) > MAX_BYTES or count > MAX_FILES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise SparkMisconfigured(
            f"ship names {count:,} files of {sum(sizes.values()) / 1e6:,.0f} MB, most of them in {largest!r}. The limits are {MAX_FILES:,} files"
            f" and {MAX_BYTES / 1e6:,.0f} MB. Name the modules and packages one by one."
        )
