"""The peers' packages, each peer's in a directory of its own below `.bench/peers`. Nothing of them is in the project."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.catalog import Peer
from benchmarks.peers.children import ROOT
from tests.versions import debian
from tests.versions.fetching import NotFetchedError

PLACE = ROOT / ".bench" / "peers"
LIMIT = 600.0
"""Seconds for one installation."""

SHARED = ("asyncpg", "msgspec", "uvloop")
"""Packages that the harness uses in each environment of Python, in the versions that Headrace runs with."""


class NotInstalled(Exception):
    """A peer's packages, or an interpreter, can't be had."""


def command(name: str, peer: Peer) -> tuple[list[str | Path], dict[str, str]]:
    """The command that runs a peer's program, and its environment. Installs the packages if they aren't there."""
    if peer.adapter.endswith(".mjs"):
        return _javascript(name, peer)
    if not peer.packages and name == "headrace":
        return [sys.executable, "-m", "benchmarks.peers.adapters.program", peer.adapter], {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)
        }
    python = _python(peer.python)
    minor = peer.python if python != _base() else sys.version_info.minor
    packages = [*peer.packages, *(f"{package}=={importlib.metadata.version(package)}" for package in SHARED)]
    place = PLACE / name
    _once(
        place,
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", place,
            "--python-version", f"3.{_minor(python, minor)}", "--only-binary=:all:", *packages,
        ],
        packages,
    )  # fmt: skip
    # Without the module `site` no other packages are seen.
    return [python, "-S", "-m", "benchmarks.peers.adapters.program", peer.adapter], {
        "PYTHONPATH": os.pathsep.join((str(place), str(ROOT)))
    }


def version(name: str, peer: Peer) -> str:
    """The version of the package that a peer is named after."""
    if not peer.packages:
        return ""
    return peer.packages[0].rpartition("@" if peer.adapter.endswith(".mjs") else "=")[2]


def _base() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable))


def _minor(python: Path, lowest: int) -> int:
    if python == _base():
        return sys.version_info.minor
    answer = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info.minor)"], capture_output=True, text=True, check=True
    )
    return int(answer.stdout)


def _python(lowest: int) -> Path:
    """This Python or, if it is too old, a newer one of this machine or of Debian's packages."""
    if sys.version_info.minor >= lowest:
        return _base()
    for minor in range(lowest, 16):
        if path := shutil.which(f"python3.{minor}"):
            return Path(path)
    try:
        return debian.fetch(debian.python(14))
    except NotFetchedError as reason:
        raise NotInstalled(f"it needs Python 3.{lowest}, and there is none: {reason}") from None


def _javascript(name: str, peer: Peer) -> tuple[list[str | Path], dict[str, str]]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        raise NotInstalled("it needs Node.js and npm on the path")
    place = PLACE / name
    _once(
        place,
        [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", place, *peer.packages],
        peer.packages,
    )
    # A module finds the packages above its own file, so the file that starts lies beside them.
    adapters = Path(__file__).with_name("adapters")
    for module in ("program.mjs", peer.adapter):
        shutil.copyfile(adapters / module, place / module)
    return [node, place / "program.mjs", peer.adapter], {}


def _once(place: Path, install: Sequence[str | Path], packages: Sequence[str]) -> None:
    """Install unless these packages were installed here before."""
    stamp, wanted = place / "installed.txt", "\n".join(packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    print(f"Installing {', '.join(packages)} into {place.relative_to(ROOT)}", file=sys.stderr)
    try:
        answer = subprocess.run(
            install, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False, cwd=place
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"the installation took more than {LIMIT:.0f} s") from None
    if answer.returncode != 0:
        lines = [line for line in answer.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise NotInstalled(f"not installed: {' '.join(lines[:3])}")
    stamp.write_text(wanted)
