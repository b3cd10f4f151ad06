"""Decides whether the promises were kept. Each event of a line goes to the consumer that it is about, see `consumer`."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.histories.columns import Contents
from tests.histories.consumer import Consumer, Violation
from tests.histories.filters import matches
from tests.histories.outcomes import Published, Settle
from tests.histories.reading import Line


class Publish(NamedTuple):
    """A publish that was sent, and the number of its transaction."""

    messages: list[Published]
    tx: int | None


class Commit(NamedTuple):
    """A commit that was sent."""

    tx: int


class Checker:
    """Reads a history.

    Args:
        comparable: whether times of different processes can be compared.
        complete: whether all that was published has been handled. Otherwise nothing counts as lost.
        durable: whether a crash reverts no outcome that was answered. A failover to a server that lagged does.

    Attributes:
        violations: what was found, in the order in which it was found.
        counts: how many lines of each event there were, and how many messages and deliveries.
    """

    def __init__(self, *, comparable: bool = True, complete: bool = True, durable: bool = False) -> None:
        self.comparable = comparable
        self.durable = durable
        self.complete = complete
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.consumers: dict[int, Consumer] = {}
        self.contents: defaultdict[str, Contents] = defaultdict(Contents)
        self._calls: dict[tuple[int, Any], Settle | Publish | Commit] = {}
        self._transactions: defaultdict[tuple[int, int], list[Published]] = defaultdict(list)
        self._stored: list[Line] = []
        self._events = {
            "consumer": lambda line: self._of(line).configure(line.fields),
            "lease": self._lease,
            "begin": lambda line: self._of(line).begin(line),
            "end": lambda line: self._of(line).end(line),
            "publish": self._publish,
            "commit": self._commit,
            "settle": self._settle,
            "answer": self._answer,
            "effect": self._effect,
            "stored": self._stored.append,
        }

    def check(self, lines: Iterable[Line]) -> list[Violation]:
        """Judge all lines. Returns the violations. Events that it doesn't know are skipped."""
        for line in lines:
            event = line.fields["event"]
            self.counts[event] += 1
            if (act := self._events.get(event)) is not None:
                act(line)
        if self.complete:
            for consumer in self.consumers.values():
                consumer.finish()
            for line in self._stored:
                self._look_for(line)
        return self.violations

    def _of(self, line: Line) -> Consumer:
        number = line.fields["consumer"]
        if number not in self.consumers:
            self.consumers[number] = Consumer(self, number)
        return self.consumers[number]

    def _lease(self, line: Line) -> None:
        self.counts["deliveries"] += len(line.fields["seqs"])
        self._of(line).lease(line)

    def _publish(self, line: Line) -> None:
        fields, call = line.fields, (line.file, line.fields["call"])
        self.counts["messages"] += len(fields["keys"])
        if fields["scheduled"] or fields["tx"] == 0:  # it gets its seq later, or its commit is not in the history
            return
        messages = [
            Published(key, digest, line.at, call) for key, digest in zip(fields["keys"], fields["digests"], strict=True)
        ]
        for consumer in self.consumers.values():
            if consumer.stream == fields["stream"]:
                for message in messages:
                    if matches(consumer.filters, message.key):
                        consumer.pending.setdefault(message.key, deque()).append(message)
        self._calls[call] = Publish(messages, fields["tx"])
        if fields["tx"] is not None:
            self._transactions[line.file, fields["tx"]] += messages

    def _commit(self, line: Line) -> None:
        if line.fields["tx"] is not None:
            self._calls[line.file, line.fields["call"]] = Commit(line.fields["tx"])

    def _settle(self, line: Line) -> None:
        self._calls[line.file, line.fields["call"]] = self._of(line).settle(line)

    def _answer(self, line: Line) -> None:
        match self._calls.pop((line.file, line.fields["call"]), None):
            case Settle() as settle:
                settle.consumer.answer(settle, line)
                if settle.tx:
                    self._transaction_ended(line, settle.tx)
            case Publish(messages, tx):
                if line.fields["answer"] != "ok" or line.fields["count"] != len(messages):
                    _committed(messages, None)
                else:
                    for message in messages[:1]:
                        message.seq = line.fields.get("seq") or 0
                    if tx is None:
                        _committed(messages, line.at)
            case Commit(tx):
                self._transaction_ended(line, tx)

    def _transaction_ended(self, line: Line, tx: int) -> None:
        messages = self._transactions.pop((line.file, tx), [])
        if line.fields["answer"] == "ok":
            _committed([message for message in messages if message.answered is not None], line.at)
        else:
            _committed(messages, None)

    def _effect(self, line: Line) -> None:
        consumer = self._of(line)
        for seq in line.fields["seqs"]:
            consumer.effect(seq)

    def _look_for(self, line: Line) -> None:
        fields = line.fields
        self.counts["messages in streams"] += len(fields["seqs"])
        for consumer in self.consumers.values():
            if consumer.stream == fields["stream"]:
                for seq, key in zip(fields["seqs"], fields["keys"], strict=True):
                    if matches(consumer.filters, key):
                        consumer.stored(seq, key)


def _committed(messages: list[Published], at: float | None) -> None:
    for message in messages:
        message.answered = at
