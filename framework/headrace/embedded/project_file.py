"""The project's pyproject.toml, and files that another user could have written.

A file that is found by walking up from the working directory, such as `/tmp/pyproject.toml`, may belong
to any user of the machine. It would choose the database of your commands. Only files of the user and of root
therefore count, as for git's `safe.directory`.
"""

from __future__ import annotations

import os
import pwd
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path

from headrace.model.errors import ConfigurationError

SAFE_DIRECTORY = "HEADRACE_SAFE_DIRECTORY"
"""The variable that names directories of other users whose project files count, separated by colons."""

_LARGEST = 1_000_000


def nearest_project(directory: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the nearest pyproject.toml from a directory upward, or None. Files of other users are
    skipped.

    Raises:
        ConfigurationError: a nearer file of another user has settings of Headrace.
    """
    for place in (directory, *directory.parents):
        file = place / "pyproject.toml"
        if not file.is_file():
            continue
        reason = distrust(file, environment)
        if reason is None:
            return file
        if _has_settings(file):
            raise ConfigurationError(
                f"{file} has settings of Headrace, and {reason}, so it is not used. Work in another directory, correct the file's"
                f" owner and mode, or set {SAFE_DIRECTORY}={place} if you trust it."
            )
    return None


def distrust(path: Path, environment: Mapping[str, str] = os.environ, *, group: bool = False) -> str | None:
    """Return why another user may have written a file or directory, as the end of a sentence. None if
    only you and root may have.

    Args:
        group: whether users of its group count, too. Many systems give each user its own group.
    """
    if _is_safe(path.parent, environment):
        return None
    writable = stat.S_IWOTH | (stat.S_IWGRP if group else 0)
    for status in (path.lstat(), path.stat()):
        if status.st_uid not in _trusted_users(environment):
            return f"it belongs to the user {_name(status.st_uid)}"
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & writable:
            return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _is_safe(directory: Path, environment: Mapping[str, str]) -> bool:
    named = environment.get(SAFE_DIRECTORY, "").split(os.pathsep)
    return any(name and directory.resolve() == Path(name).resolve() for name in named)


def _trusted_users(environment: Mapping[str, str]) -> set[int]:
    user = os.geteuid()
    caller = environment.get("SUDO_UID", "")
    return {0, user, int(caller)} if user == 0 and caller.isascii() and caller.isdecimal() else {0, user}


def _name(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name!r}"
    except KeyError:
        return f"with the id {user}"


def _has_settings(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            text = opened.read(_LARGEST).decode()
        return "headrace" in tomllib.loads(text).get("tool", {})
    except (OSError, ValueError, TypeError, RecursionError):
        return False
