"""The histories that the demo publishes, and the tree that their changes must result in."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from headrace.cli.demo.git_log import Change, changes
from headrace.cli.demo.keys import key_of
from headrace.cli.demo.repository import Repository
from headrace.cli.errors import UnreadableInput
from headrace.model.errors import InvalidData


class History(Protocol):
    """Changes with their keys, how many there are, and the resulting tree: key to object id."""

    name: str

    def messages(self) -> Iterator[tuple[str, Change]]: ...
    def count(self) -> int: ...
    def tree(self) -> dict[str, str]: ...


class RepositoryHistory:
    """The history of a repository's HEAD along first parents. Raises `UnreadableInput`."""

    def __init__(self, path: Path) -> None:
        self._repository = Repository(path)
        self.name = self._repository.name

    def messages(self) -> Iterator[tuple[str, Change]]:
        for path, change in changes(self.name, self._repository.log()):
            yield key_of(self.name, path), change

    def count(self) -> int:
        return sum(1 for _ in self.messages())

    def tree(self) -> dict[str, str]:
        return {key_of(self.name, path): found for path, found in self._repository.tree().items()}


class FileHistory:
    """A history as NDJSON (`{"key", "data"}` lines) and its tree as JSON (path to object id). Either
    may be `.gz`.

    Raises:
        UnreadableInput: a file can't be read.
        InvalidData: a file has invalid content.
    """

    def __init__(self, history: Path, tree: Path) -> None:
        self._history = _Line.read(history)
        self._tree = tree
        if not self._history:
            raise UnreadableInput(f"The history {str(history)!r} is empty. It needs one line per change.")
        self.name = self._history[0].data.repo

    def messages(self) -> Iterator[tuple[str, Change]]:
        for line in self._history:
            yield line.key, line.data

    def count(self) -> int:
        return len(self._history)

    def tree(self) -> dict[str, str]:
        try:
            files = msgspec.json.decode(_content(self._tree), type=dict[str, str])
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidData(f"{str(self._tree)!r} is not a JSON object of paths and object ids: {error}.") from error
        return {key_of(self.name, path): found for path, found in files.items()}


class _Line(msgspec.Struct):
    key: str
    data: Change

    @classmethod
    def read(cls, path: Path) -> list[_Line]:
        decoder = msgspec.json.Decoder(cls)
        lines = []
        for number, line in enumerate(_content(path).splitlines(), 1):
            try:
                lines.append(decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise InvalidData(f"Line {number} of {str(path)!r} is not a file change: {error}.") from error
        return lines


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError) as error:
        raise UnreadableInput(f"The file {str(path)!r} can't be read: {error}.") from error
