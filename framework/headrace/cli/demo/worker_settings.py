"""The settings that the demo passes to its worker processes, in their environment."""

from __future__ import annotations

import os

import msgspec

_VARIABLE = "HEADRACE_DEMO_WORKER"

CONSUMER = "file-states"

ATTEMPTS = 3
"""After how many attempts the poison message is a dead letter."""


class WorkerSettings(msgspec.Struct, frozen=True):
    """Settings of the demo's worker processes.

    Attributes:
        stream: the name of the run's stream.
        actors: how many batches a process handles at the same time.
        work: how long a handler waits, in seconds.
        ack_wait: the consumer's, in seconds.
    """

    stream: str
    actors: int
    work: float
    ack_wait: float

    def environment(self) -> dict[str, str]:
        return {_VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def read(cls) -> WorkerSettings:
        return msgspec.json.decode(os.environ[_VARIABLE], type=cls)
