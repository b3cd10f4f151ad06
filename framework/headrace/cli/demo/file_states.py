"""The demo's handler. It keeps the state of every file, and checks that each change follows the previous
one.

A message that is lost, duplicated or out of order within its key breaks the chain of object ids or
results in another tree.
"""

from __future__ import annotations

from headrace import Message
from headrace.cli.demo.git_log import Change

_MAX_EXAMPLES = 5


class FileStates:
    """The state of all files, key to object id, built only from messages.

    Attributes:
        handled: messages that were applied.
        repeated: messages that were delivered again after a lease was lost, and were skipped.
        out_of_order: messages with an `old` that was not the state of their file.
        examples: descriptions of the first of these.
    """

    def __init__(self) -> None:
        self.handled = 0
        self.repeated = 0
        self.out_of_order = 0
        self.examples: list[str] = []
        self._state: dict[str, str | None] = {}
        self._seen: dict[str, int] = {}

    async def apply(self, change: Change, message: Message) -> None:
        """Apply one change."""
        if message.seq <= self._seen.get(message.key, 0):
            self.repeated += 1
            return
        before = self._state.get(message.key)
        if before != change.old:
            self._record_out_of_order(
                f"{change.path}: commit {change.commit[:10]} changes {change.old}, but the file was at {before}"
            )
        self._seen[message.key] = message.seq
        self._state[message.key] = change.new
        self.handled += 1

    def _record_out_of_order(self, sentence: str) -> None:
        self.out_of_order += 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(sentence)

    @property
    def keys(self) -> int:
        """The number of files that existed at any time."""
        return len(self._state)

    def files(self) -> dict[str, str]:
        """The files that exist now."""
        return {key: state for key, state in self._state.items() if state is not None}


def compare_trees(actual: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Return the differences between two trees, one sentence per file. Empty if they are equal."""
    return [
        f"{key}: the handler has {actual.get(key, 'no such file')}, git has {expected.get(key, 'no such file')}"
        for key in sorted(actual.keys() | expected.keys())
        if actual.get(key) != expected.get(key)
    ]
