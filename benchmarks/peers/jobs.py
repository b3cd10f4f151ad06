"""The jobs that each peer does."""

from __future__ import annotations

from typing import Literal

import msgspec

SMALL_NOTE = 60
"""Characters of the note that make a payload of about 200 bytes."""
LARGE_NOTE = 9_900

Kind = Literal["publish", "drain", "pace", "live"]
Mode = Literal["noop", "work", "hold", "effect", "fail", "slow"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job.

    Args:
        title: the figure, in words.
        kind: `publish` only publishes. `drain` handles a backlog. `pace` publishes at a rate beside a worker. `live`
            publishes as fast as it goes beside the readers.
        mode: what the handler does, see `process/recorder.py`.
        keys: how many keys there are.
        ordered: whether a peer that can keep the order of keys is told to.
        batch: messages in a call of publish.
        rate: messages per second of `pace`.
        readers: how many readers get each message, each in a process of its own.
        transaction: messages that may share the transaction of their acks.
        per_core: one worker process for each core.
        checkpoint: after the backlog was published, so that it is older than a checkpoint.
        snapshot: another session's snapshot is held from before the first message to the end.
        later: whether many messages wait for a later time beside the backlog.
        repeats: at most so many, if the command asks for more.
    """

    title: str
    kind: Kind = "drain"
    mode: Mode = "noop"
    keys: int = 100_000
    note: int = SMALL_NOTE
    ordered: bool = False
    batch: int = 100
    rate: int = 0
    readers: int = 1
    transaction: int = 1
    per_core: bool = False
    checkpoint: bool = False
    snapshot: bool = False
    later: bool = False
    repeats: int = 100


JOBS: dict[str, Job] = {
    "publish": Job(title="published in batches of 100, each committed before the next", kind="publish"),
    "single": Job(title="published one by one, each committed before the next", kind="publish", batch=1),
    "drain": Job(title="a backlog drained by one process"),
    "cores": Job(title="a backlog drained by one process per core", per_core=True),
    "backlog": Job(title="a backlog drained that is older than a checkpoint", checkpoint=True),
    "work": Job(title="1 ms of awaited work, 1,000 keys", mode="work", keys=1000, ordered=True),
    "hot": Job(title="1 ms of awaited work, 10 keys", mode="work", keys=10, ordered=True),
    "latency": Job(title="from publish to handler at 500/s, one by one", kind="pace", rate=500, batch=1, keys=1000),
    "latency5000": Job(
        title="from publish to handler at 5,000/s, in batches of 10", kind="pace", rate=5000, batch=10, keys=1000
    ),
    "fanout": Job(
        title="published, and handled by each of three readers, 10 kB",
        kind="live",
        readers=3,
        note=LARGE_NOTE,
        batch=10,
        keys=1000,
    ),
    "effect": Job(title="a row written with each ack, each in a transaction of its own", mode="effect", keys=1000),
    "effects": Job(
        title="a row written with each ack, 100 in a transaction", mode="effect", keys=1000, transaction=100
    ),
    "snapshot": Job(title="a backlog drained beside a snapshot that is held", snapshot=True),
    "blocked": Job(
        title="a backlog of 100 keys drained beside a key whose handler hangs", mode="hold", keys=100, ordered=True
    ),
    "later": Job(title="a backlog drained beside messages that wait for later", later=True, repeats=1),
}

FLUSHED = ("publish", "single", "drain", "latency")
"""The jobs of a peer that flushes each write as a variant: those that its flushing slows."""
