"""Claims a directory for a pipeline, with a file that stores its purpose and its id."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headrace_spark.pipelines.files import CantKeepFiles, Files

T = TypeVar("T", bound=msgspec.Struct)


def claimed(files: Files, name: str, made: T, what: str, ours: tuple[str, ...] = ()) -> T:
    """Claim a directory, or return its existing claim. If several processes claim it at once, one claim holds for all.

    Args:
        name: the name of the file.
        made: the content to write into the file.
        what: what the directory is for, for the error message.
        ours: names that may be in it before it is claimed. Names that begin with a dot are also
            allowed.

    Returns:
        The content of the file.

    Raises:
        CantKeepFiles: the directory holds something else.
    """
    if (known := _read(files, name, made)) is not None:
        return known
    if any(not one.startswith(".") and one not in ours for one in files.names()):
        if (known := _read(files, name, made)) is not None:  # another process was faster
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
