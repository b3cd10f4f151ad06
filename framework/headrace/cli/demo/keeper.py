"""The demo's handler. It keeps the state of every file, and checks that each change follows the one
before.

A message that is lost, duplicated or out of order within its key breaks the chain of object ids or
results in another tree.
"""

from __future__ import annotations

from headrace import Message
from headrace.cli.demo.git_history import Change

_SHOWN = 5


class Keeper:
    """The state of all files, key to object id, built only from messages.

    Attributes:
        handled: messages that were applied.
        repeated: messages that were delivered again after a lease was lost, and were skipped.
        out_of_order: messages with an `old` that was not the state of their file.
        examples: sentences about the first of these.
    """

    def __init__(self) -> None:
        self.handled = 0
        self.repeated = 0
        self.out_of_order = 0
        self.examples: list[str] = []
        self._state: dict[str, str | None] = {}
        self._seen: dict[str, int] = {}

    async def keep(self, change: Change, message: Message) -> None:
        """Apply one change."""
        if message.seq <= self._seen.get(message.key, 0):
            self.repeated += 1
            return
        before = self._state.get(message.key)
        if before != change.old:
            self._complain(f"{change.path}: {change.commit[:10]} changes {change.old}, and the file is at {before}")
        self._seen[message.key] = message.seq
        self._state[message.key] = change.new
        self.handled += 1

    def _complain(self, sentence: str) -> None:
        self.out_of_order += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(sentence)

    @property
    def keys(self) -> int:
        """How many files existed at any time."""
        return len(self._state)

    def files(self) -> dict[str, str]:
        """The files that exist now."""
        return {key: state for key, state in self._state.items() if state is not None}


def differences(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """The differences between two trees, one sentence per file. Empty if they are the same."""
    return [
        f"{key}: {found.get(key, 'not there')}, and git has {wanted.get(key, 'no such file')}"
        for key in sorted(found.keys() | wanted.keys())
        if found.get(key) != wanted.get(key)
    ]
