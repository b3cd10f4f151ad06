"""A copy of Postgres's programs for a server user that can't enter their directory.

A virtual environment below `/root` is the usual case. The copy is made once per version, in a cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.embedded.binaries import Installation
from headrace.embedded.locks import exclusive
from headrace.embedded.os_user import OsUser
from headrace.embedded.paths import make_private_directory
from headrace.model.errors import EmbeddedPostgresError

CACHES = (Path("/var/cache/headrace"), Path("/tmp/headrace-cache"))
COPY_LIMIT = 120.0
"""Seconds to wait for another process that is making the same copy."""


def usable_by(os_user: OsUser, installation: Installation, caches: Sequence[Path] = CACHES) -> Installation:
    """The installation itself, or a copy of it that the user can execute.

    Raises `EmbeddedPostgresError` when there is no place for a copy.
    """
    if os_user.can_execute(installation.program("postgres")):
        return installation
    for cache in caches:
        try:
            copy = _copied(installation, cache)
        except OSError:
            continue
        if os_user.can_execute(copy.bin) and os_user.run([copy.program("initdb"), "-V"]).returncode == 0:
            return copy
    raise EmbeddedPostgresError(
        f"Postgres runs as the user {os_user.name!r}, which can execute neither the programs in "
        f"{installation.bin} nor a copy in {' or '.join(map(str, caches))}. "
        "Set HEADRACE_PG_BIN to programs that this user can execute."
    )


def _copied(installation: Installation, cache: Path) -> Installation:
    _make_cache(cache)
    tree = installation.bin.resolve().parent
    target = cache / f"postgres-{installation.version}-{_fingerprint(installation, tree)}"
    if not target.is_dir():
        with exclusive(cache / "copy.lock", COPY_LIMIT):
            if not target.is_dir():
                _copy(tree, target)
    return replace(installation, bin=target / tree.parent.name / tree.name / installation.bin.name)


def _make_cache(cache: Path) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    # Only root makes copies, and no other user may own the programs that root's server runs.
    make_private_directory(cache, OsUser("root", os.geteuid(), os.getegid()), 0o755)


def _fingerprint(installation: Installation, tree: Path) -> str:
    program = installation.program("postgres").stat()
    return hashlib.sha256(f"{tree} {program.st_size} {program.st_mtime_ns}".encode()).hexdigest()[:8]


def _copy(tree: Path, target: Path) -> None:
    """Copy to a temporary place first, so that a copy under its final name is always complete.

    The programs of a wheel look for their libraries beside the wheel's package. These are therefore copied too, and
    the copy keeps the original's directory structure two levels up.
    """
    unfinished = target.with_name("unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    package = tree.parent
    libraries = (package.with_name(f"{package.name}.libs"), package / ".dylibs")
    for source in (tree, *(path for path in libraries if path.is_dir())):
        goal = unfinished / source.relative_to(package.parent)
        shutil.copytree(source, goal, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    for directory, _, files in os.walk(unfinished):
        _open_for_all(Path(directory))
        for name in files:
            _open_for_all(Path(directory, name))
    unfinished.rename(target)


def _open_for_all(path: Path) -> None:
    if not path.is_symlink():
        mode = path.stat().st_mode
        path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
