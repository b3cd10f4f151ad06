"""Claims a directory for a pipeline, with a file that stores its purpose and its id."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headrace_spark.lake.files import CantKeepFiles, Files

T = TypeVar("T", bound=msgspec.Struct)


def claim(files: Files, name: str, content: T, purpose: str, allowed: tuple[str, ...] = ()) -> T:
    """Claim a directory, or return its existing claim. If several processes claim it at the same time, one claim
    holds for all.

    Args:
        name: the name of the file.
        content: the content to write into the file.
        purpose: what the directory is for, for the error message.
        allowed: names that may be in it before it is claimed. Names that begin with a dot are also
            allowed.

    Returns:
        The content of the file.

    Raises:
        CantKeepFiles: the directory holds something else.
    """
    if (existing := _read(files, name, content)) is not None:
        return existing
    if any(not entry.startswith(".") and entry not in allowed for entry in files.names()):
        if (existing := _read(files, name, content)) is not None:  # another process was faster
            return existing
        raise CantKeepFiles(
            f"The directory {files.root!r} holds other files, and is no {purpose}. Give an empty directory, or one that does not exist."
        )
    if files.create(name, msgspec.json.encode(content)):
        return content
    return _read(files, name, content) or content


def _read(files: Files, name: str, content: T) -> T | None:
    text = files.read(name)
    return None if text is None else msgspec.json.decode(text, type=type(content))
