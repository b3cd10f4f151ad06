"""Run the core's tests on another version of Python, as `make test-python VERSION=3.15` does.

    python3.13 -m tests.versions.python                these tests on this Python
    python3 -m tests.versions.python 3.15              on the Python 3.15 of this machine, or else on Debian's
    python3 -m tests.versions.python --newest --short  on the newest Python of this machine, if it is newer than
                                                       the one that runs this
    python3.13 -m tests.versions.python -- -k lease    with arguments for pytest

Exits with the code of pytest. A version that can't be fetched is reported as not tested, which is no failure.

The Python gets a separate environment below `.venv`, with the versions of `requirements.lock` and without
Spark. This module needs nothing but Python.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.versions import debian
from tests.versions.fetching import PROJECT, NotFetchedError

LOCK = PROJECT / "requirements.lock"

SUITE = (
    *("tests/app", "tests/client", "tests/drivers", "tests/embedded", "tests/flow", "tests/model", "tests/runtime"),
    *("tests/server", "tests/sources", "tests/store", "tests/telemetry", "tests/testing", "tests/versions"),
)
"""The tests of the core."""

SHORT = ("tests/client", "tests/drivers", "tests/flow", "tests/model", "tests/runtime")
"""The tests of what is Python rather than SQL, for continuous integration."""

_WITHOUT = ("spark", "delta", "iceberg", "ducklake")
"""The extras that are left out, Spark and its tables. They are the largest by far, and have versions of Python of their
own."""

_OLDEST = 11
"""The second number of the oldest supported version."""

_VERSION = "import sys; print(sys.version_info.releaselevel, *sys.version_info[:3])"

_PIN = re.compile(r"^[a-z0-9][^\\#\n]*==[^\\\n]*", re.MULTILINE)

Version = tuple[int, ...]


def requirements(
    document: Mapping[str, Any], groups: Iterable[str] = ("test",), *, without: Container[str] = ()
) -> list[str]:
    """Return the dependencies of the project, of all extras and of dependency groups, for pip.

    Args:
        document: pyproject.toml.
        without: extras that are left out.
    """
    project = document["project"]
    texts = list(project["dependencies"])
    for extra, needed in project["optional-dependencies"].items():
        texts += [] if extra in without else needed
    for group in groups:
        texts += document["dependency-groups"][group]
    own = re.compile(rf"{re.escape(project['name'])}\[")  # an extra of the project, which is among them already
    return [text for text in dict.fromkeys(texts) if not own.match(text)]


def newest(candidates: Iterable[Path], minor: int | None = None) -> tuple[Version, Path] | None:
    """Return the newest Python among the programs that run, with its version. None if none runs.

    Args:
        minor: the second number that the version must have. Without it, previews are left out.
    """
    found: dict[Version, Path] = {}
    for program in candidates:
        level, version = _version(program)
        if level == "final" if minor is None else version[1:2] == (minor,):
            found.setdefault(version, program)
    return max(found.items(), default=None)


def named(word: str) -> Path:
    """Return the Python that a version, a name or a path stands for: one of this machine, or else Debian's.

    Raises:
        NotFetchedError: it is not on this machine, and can't be fetched.
        ValueError: there is no such program, or Headrace doesn't support the version.
    """
    version = re.fullmatch(r"(?:python)?3\.([1-9][0-9]?)", word, re.ASCII)
    if version is None:
        if program := shutil.which(word):
            return Path(program)
        raise ValueError(
            f"{word!r} is neither a Python of this machine nor a version. Use such as 3.{_OLDEST} or a path."
        )
    minor = int(version[1])
    if minor < _OLDEST:
        raise ValueError(f"Headrace does not support Python 3.{minor}. Use 3.{_OLDEST} or newer.")
    found = newest(candidates(), minor)
    return found[1] if found else debian.fetch(debian.python(minor))


def candidates() -> Iterator[Path]:
    """Yield the Pythons of this machine from the oldest supported one on: on the path, fetched before, and of pyenv."""
    for minor in range(_OLDEST, 31):
        if path := shutil.which(f"python3.{minor}"):
            yield Path(path)
        yield debian.place_of(debian.python(minor))
    if pyenv := shutil.which("pyenv"):
        answer = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False)
        yield from Path(answer.stdout.strip(), "versions").glob("3.*/bin/python3")


def _version(program: Path) -> tuple[str, Version]:
    """Return the release level of a Python and its version, which is empty if it doesn't run."""
    try:
        answer = subprocess.run([program, "-c", _VERSION], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ()
    level, *numbers = answer.stdout.split() or [""]
    return level, tuple(map(int, numbers))


def environment() -> Path:
    """Return the Python of an environment with the project for the Python that runs this. Makes it if needed.

    Raises:
        subprocess.CalledProcessError: pip can't install what is needed.
    """
    home = PROJECT / ".venv" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python, stamp = home / "bin" / "python", home / ".ready"
    needed = hashlib.sha256((PROJECT / "pyproject.toml").read_bytes() + LOCK.read_bytes() + sys.version.encode())
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != needed.hexdigest():
        shutil.rmtree(home, ignore_errors=True)
        _make_environment(home)
        document = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pins = home / "pins.txt"  # without the hashes, since pip then wants all packages listed, and Spark's are not
        pins.write_text("\n".join(_PIN.findall(LOCK.read_text(encoding="utf-8"))), encoding="utf-8")
        subprocess.run([*pip, "-c", pins, *requirements(document, without=_WITHOUT)], check=True)
        subprocess.run([*pip, "--no-deps", "-e", PROJECT], check=True)
        stamp.write_text(needed.hexdigest(), encoding="utf-8")
    return python


def _make_environment(home: Path) -> None:
    if subprocess.run([sys.executable, "-m", "venv", home], check=False).returncode == 0:
        return
    # Some systems ship Python without the venv module's pip.
    bootstrap = home.parent / "bootstrap"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", bootstrap, "virtualenv"]
    subprocess.run(pip, check=True)
    path = {**os.environ, "PYTHONPATH": str(bootstrap)}
    subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", home], env=path, check=True)


def _report(line: str) -> None:
    print(line, flush=True)


def _run_on_newest(arguments: Sequence[str]) -> int:
    found = newest(candidates())
    if found is None or found[0][:2] <= sys.version_info[:2]:
        _report(f"NOT TESTED ON A NEWER PYTHON: there is none newer than {sys.version.split()[0]} here")
        return 0
    version, program = ".".join(map(str, found[0])), found[1]
    # pip's own environment must not be that of the Python that runs this.
    if _run_on(program, ["--prepare"]) != 0:
        _report(f"NOT TESTED ON PYTHON {version}: its environment can't be made, see above")
        return 0
    return _run_on(program, arguments)


def _run_on(program: Path, arguments: Sequence[str]) -> int:
    return subprocess.run([program, "-m", "tests.versions.python", *arguments], cwd=PROJECT, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the tests on the Python that runs this, on the one that is named, or on the newest one."""
    ours = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    parser = argparse.ArgumentParser(prog="python -m tests.versions.python")
    parser.add_argument(
        "python", nargs="?", metavar="PYTHON", help="such as 3.15. The default is the one that runs this"
    )
    parser.add_argument("--newest", action="store_true", help="on the newest Python here, if that is a newer one")
    parser.add_argument("--short", action="store_true", help="only the tests of what is Python rather than SQL")
    parser.add_argument("--prepare", action="store_true", help="only make the environment")
    parser.add_argument("--jobs", default="2", help="processes of pytest-xdist")
    options = parser.parse_args(ours)
    if options.newest:
        return _run_on_newest([argument for argument in arguments if argument != "--newest"])
    if options.python:
        try:
            program = named(options.python)
        except NotFetchedError as error:
            _report(f"NOT TESTED ON PYTHON {options.python.removeprefix('python')}: {error}")
            return 0
        except ValueError as error:
            parser.error(str(error))
        ours.remove(options.python)
        return _run_on(program, [*ours, *arguments[len(ours) + 1 :]])
    try:
        python = environment()
    except subprocess.CalledProcessError as error:
        _report(f"The environment for Python {sys.version.split()[0]} can't be made: {error}")
        return 1
    if options.prepare:
        return 0
    rest = arguments[len(ours) + 1 :]
    selected = any(argument.startswith("tests/") for argument in rest)
    tests = [*(() if selected else SHORT if options.short else SUITE), *rest]
    _report(f"Python {sys.version.split()[0]}, {python}")
    return subprocess.run([python, "-m", "pytest", "-n", options.jobs, *tests], cwd=PROJECT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
