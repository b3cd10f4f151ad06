"""Whose a directory is: a file in it says what it is for, and under which id its results are published."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headrace_spark.pipelines.files import CantKeepFiles, Files

T = TypeVar("T", bound=msgspec.Struct)


def claimed(files: Files, name: str, made: T, what: str, ours: tuple[str, ...] = ()) -> T:
    """Claim a directory, or find that it is claimed; of several that do so at once, one makes the claim of all.

    Args:
        name: of the file.
        made: what to write into it.
        what: what the directory is to be, for what is said when it is something else.
        ours: what may lie in it before it is claimed; a name that begins with a dot may, too.

    Returns:
        What the file says.

    Raises:
        CantKeepFiles: there is something else in it.
    """
    if (known := _read(files, name, made)) is not None:
        return known
    if any(not one.startswith(".") and one not in ours for one in files.names()):
        if (known := _read(files, name, made)) is not None:  # somebody was quicker
            return known
        raise CantKeepFiles(
            f"There is something in {files.root!r} that is no {what}: give a directory that is empty, or none yet."
        )
    if files.create(name, msgspec.json.encode(made)):
        return made
    return _read(files, name, made) or made


def _read(files: Files, name: str, made: T) -> T | None:
    text = files.read(name)
    return None if text is None else msgspec.json.decode(text, type=type(made))
