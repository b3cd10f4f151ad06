"""Histories that a test makes up, of processes that share a clock."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from tests.histories.checker import Checker
from tests.histories.consumer import Violation
from tests.histories.reading import FORMAT, Fields, Line, write

CONSUMER = 1


class MadeUp:
    """A history. Each line is a thousandth of a second after the one before.

    Attributes:
        files: the lines of each process, in the order of its events.
    """

    def __init__(self, *, clocks: tuple[str, ...] = ("one",), **settings: Any) -> None:
        self.files: dict[str, list[Fields]] = {}
        self._clocks = clocks
        self._ticks = count(1)
        self._calls = count(1)
        self._leases = count(1)
        self._seqs = count(1)
        self.now = 0.0
        settings = {"ordered": True, "max_deliver": -1, "conditional": False, "filters": [">"]} | settings
        self.line("ann", "consumer", consumer=CONSUMER, stream="orders", name="ship", **settings)

    def line(self, process: str, event: str, /, **fields: Any) -> None:
        if process not in self.files:
            clock = self._clocks[len(self.files) % len(self._clocks)]
            self.files[process] = []
            self.line(process, "process", version=FORMAT, process=len(self.files), clock=clock, wall=0.0)
        self.tick()
        self.files[process].append({"t": self.now, "event": event, **fields})

    def tick(self) -> float:
        self.now = next(self._ticks) / 1000
        return self.now

    def call(self) -> int:
        return next(self._calls)

    def publish(
        self,
        *keys: str,
        process: str = "pub",
        tx: int | None = None,
        answer: str | None = "ok",
        scheduled: bool = False,
        again: int = 0,
    ) -> list[int]:
        """Publish a message of each key, or message `again` once more with its id. Returns their seqs, which are their
        digests, too."""
        seqs, call = [again or next(self._seqs) for _ in keys], self.call()
        self.line(process, "publish", call=call, stream="orders", keys=list(keys), digests=seqs, tx=tx, scheduled=scheduled)  # fmt: skip
        if answer is not None:
            more = {"seq": again} if again else {}
            self.line(process, "answer", call=call, answer=answer, count=len(keys), **more)
        return seqs

    def commit(self, tx: int, *, process: str = "pub", answer: str = "ok") -> None:
        call = self.call()
        self.line(process, "commit", call=call, tx=tx)
        self.line(process, "answer", call=call, answer=answer)

    def lease(
        self,
        process: str,
        *messages: tuple[int, str],
        attempt: int = 1,
        number: int | None = None,
        timeline: str = "a",
        began: float | None = None,
    ) -> int:
        """Lease messages, each its seq and its key. Returns the lease."""
        lease = next(self._leases) if number is None else number
        began = began or self.tick()
        self.line(
            process, "lease", began=began, consumer=CONSUMER, owner=process, timeline=timeline, history=timeline,
            leases=[(lease, len(messages))], seqs=[seq for seq, _ in messages], attempts=[attempt] * len(messages),
            keys=[key for _, key in messages], digests=[seq for seq, _ in messages],
        )  # fmt: skip
        return lease

    def begin(self, process: str, lease: int, *seqs: int) -> int:
        run = self.call()
        self.line(process, "begin", consumer=CONSUMER, run=run, messages=[(lease, seq) for seq in seqs])
        return run

    def end(self, process: str, run: int, outcome: str = "returned") -> None:
        self.line(process, "end", consumer=CONSUMER, run=run, outcome=outcome)

    def handle(self, process: str, lease: int, *seqs: int, outcome: str = "returned") -> None:
        self.end(process, self.begin(process, lease, *seqs), outcome)

    def send(
        self,
        process: str,
        lease: int,
        *seqs: int,
        kind: str = "ack",
        whole: bool = False,
        tx: int | None = None,
        history: str = "a",
    ) -> int:
        """Send outcomes. Returns the call."""
        call = self.call()
        single = () if whole else seqs
        self.line(
            process, "settle", call=call, consumer=CONSUMER, whole=[lease] if whole else [], leases=[lease] * len(single),
            seqs=list(single), kinds=[kind] * len(single), tx=tx, history=history,
        )  # fmt: skip
        return call

    def answer(
        self, process: str, call: int, answer: str = "ok", lost: tuple[tuple[int, int | None], ...] = ()
    ) -> None:
        self.line(process, "answer", call=call, answer=answer, lost=list(lost))

    def settle(self, process: str, lease: int, *seqs: int, lost: bool = False, **how: Any) -> None:
        call = self.send(process, lease, *seqs, **how)
        named: tuple[int | None, ...] = (None,) if how.get("whole") else seqs
        self.answer(process, call, lost=tuple((lease, seq) for seq in named) if lost else ())

    def work(self, process: str, *messages: tuple[int, str], **how: Any) -> int:
        """Lease messages, handle and settle each. Returns the lease."""
        lease = self.lease(process, *messages, **how)
        for seq, _ in messages:
            self.handle(process, lease, seq)
            self.settle(process, lease, seq)
        return lease

    def check(self, **options: Any) -> list[Violation]:
        """Return the violations."""
        lines = sorted(
            Line(fields["t"], place, number, fields)
            for place, file in enumerate(self.files.values())
            for number, fields in enumerate(file, 1)
        )
        return Checker(**options).check(lines)

    def broken(self, **options: Any) -> set[str]:
        return {violation.promise for violation in self.check(**options)}

    def save(self, directory: Path) -> None:
        for name, lines in self.files.items():
            write(directory / f"{name}.ndjson", lines)
