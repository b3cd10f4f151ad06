"""The parser of `git log -z --raw --numstat`. For each commit, git prints

    commit <id> <time> NUL
    :<mode> <mode> <old> <new> <status> NUL <path> NUL         one for each file that changed
    <added> TAB <deleted> TAB <path> NUL                       the same files again, with dashes for a binary one

with a newline before the first file of a commit. Paths can contain any bytes, so only the order
determines what a part is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from headrace.cli.demo.keys import printable_path


class Change(msgspec.Struct):
    """A commit's change of a file.

    `old`, `new`: object ids, None for no file. `added`, `deleted`: lines, None if the file is binary.
    """

    repo: str
    commit: str
    time: int
    path: str
    change: Literal["insert", "update", "delete"]
    old: str | None
    new: str | None
    added: int | None
    deleted: int | None


def changes(repo: str, parts: Iterable[bytes]) -> Iterator[tuple[str, Change]]:
    """Yield every change with its path in git, in the order of the log."""
    commit, time = "", 0
    files: dict[bytes, Change] = {}
    rest = iter(parts)
    for part in rest:
        if part.startswith(b"commit "):
            yield from _with_paths(files)
            _, commit, seconds = part.decode().split(" ")
            time, files = int(seconds), {}
        elif part.startswith((b":", b"\n:")):
            path = next(rest)
            files[path] = _change(repo, commit, time, part, path)
        else:
            added, deleted, path = part.removeprefix(b"\n").split(b"\t", 2)
            files[path].added, files[path].deleted = _count(added), _count(deleted)
    yield from _with_paths(files)


def _change(repo: str, commit: str, time: int, about: bytes, path: bytes) -> Change:
    _, _, before, after, _ = about.decode().split(" ")
    old, new = _object(before), _object(after)
    kind: Literal["insert", "update", "delete"] = "insert" if old is None else "delete" if new is None else "update"
    return Change(repo, commit, time, printable_path(_text(path)), kind, old, new, None, None)


def _with_paths(files: dict[bytes, Change]) -> Iterator[tuple[str, Change]]:
    for path, change in files.items():
        yield _text(path), change


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _object(name: str) -> str | None:
    return name if name.strip("0") else None


def _count(lines: bytes) -> int | None:
    return None if lines == b"-" else int(lines)
