"""The peers' packages, each peer's in a directory of its own below `.bench/peers`. Nothing of them is in the project."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.peers.catalog import PEERS, Peer
from benchmarks.peers.children import ROOT

PLACE = ROOT / ".bench" / "peers"
LIMIT = 600.0
"""Seconds for one installation."""

SHARED = ("asyncpg", "msgspec", "uvloop")
"""Packages that the harness uses in each environment of Python, in the versions that Headrace runs with."""


class NotInstalled(Exception):
    """A peer's packages, or an interpreter, can't be had."""


def launch(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """How a peer's program is run: its command, environment and settings. Installs what isn't there.

    Raises:
        NotInstalled: it can't be had.
    """
    peer, settings = PEERS[name], dict(options)
    if peer.needs and peer.needs not in settings:
        file = PLACE / f"{name}.{peer.needs}"
        if not file.exists():
            raise NotInstalled(
                f"its file is in no registry of packages: name it by --opt {name}.{peer.needs}=FILE, or put it into"
                f" {file.relative_to(ROOT)}"
            )
        settings[peer.needs] = str(file.relative_to(ROOT))  # where peers run; results hold no path of a machine
    try:
        words, environment = _command(peer)
    except OSError as error:
        raise NotInstalled(f"not installed: {error}") from error
    return {"command": list(map(str, words)), "environment": environment, "settings": settings}


def _command(peer: Peer) -> tuple[list[str | Path], dict[str, str]]:
    """The command that runs a peer's program, and its environment. Installs the packages if they aren't there."""
    if peer.adapter.endswith(".mjs"):
        return _javascript(peer)
    if peer.adapter == "headrace":
        return [sys.executable, "-m", "benchmarks.peers.process.program", peer.adapter], {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)
        }
    python, minor = _python(peer.python)
    packages = [*peer.packages, *(f"{package}=={importlib.metadata.version(package)}" for package in SHARED)]
    place = _place(peer)
    pip = sys.executable if minor == sys.version_info.minor else python
    _once(
        place,
        [pip, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", place, *packages],
        packages,
    )
    # Without the module `site` no other packages are seen.
    return [python, "-S", "-m", "benchmarks.peers.process.program", peer.adapter], {
        "PYTHONPATH": os.pathsep.join((str(place), str(ROOT)))
    }


def program(peer: Peer, name: str) -> Path:
    """A program among a peer's packages."""
    return _place(peer) / "bin" / name


def version(peer: Peer) -> str:
    """The version of a peer, as the tables have it."""
    if peer.server == "redis":
        return _redis()
    if peer.version or not peer.packages:
        return peer.version
    return peer.packages[0].rpartition("@" if peer.adapter.endswith(".mjs") else "=")[2]


@cache
def _redis() -> str:
    try:
        told = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    return told.partition("v=")[2].partition(" ")[0]


def _place(peer: Peer) -> Path:
    return PLACE / peer.adapter.partition(".")[0]


def _python(lowest: int) -> tuple[Path, int]:
    """This Python or, if it is too old, a newer one of this machine, and its minor version."""
    if sys.version_info.minor >= lowest:
        return Path(getattr(sys, "_base_executable", sys.executable)), sys.version_info.minor
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(lowest, lowest + 10):
        named = shutil.which(f"python3.{minor}")
        for python in (*([Path(named)] if named else []), *of_pyenv.glob(f"3.{minor}.*/bin/python")):
            if _runs(python):
                return python, minor
    raise NotInstalled(f"it needs Python 3.{lowest} or newer, and there is none on the path")


def _runs(python: Path) -> bool:
    """Whether it is more than a version manager's placeholder, and has pip."""
    return subprocess.run([python, "-m", "pip", "-V"], capture_output=True, check=False).returncode == 0


def _javascript(peer: Peer) -> tuple[list[str | Path], dict[str, str]]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        raise NotInstalled("it needs Node.js and npm on the path")
    place = _place(peer)
    _once(
        place,
        [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", place, *peer.packages],
        peer.packages,
    )
    # A module finds the packages above its own file, so the file that starts lies beside them.
    here = Path(__file__).parent
    for module in (here / "process" / "program.mjs", here / "adapters" / peer.adapter):
        shutil.copyfile(module, place / module.name)
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
