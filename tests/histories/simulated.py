"""A simulated database that keeps the promises, and processes that freeze, fail and are killed, by chance. Their histories are made
up.

A request, what the database does about it, and the answer that the process reads are three steps, and anything may happen
between them. Leases and the ends of leases are not on disk until an outcome or a message is, so a crash reverts the latest.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.histories.made_up import CONSUMER, MadeUp


class Item(NamedTuple):
    """A message that a process has leased."""

    lease: int
    seq: int
    key: str


class Outcome(NamedTuple):
    """An outcome that a process has not had confirmed."""

    item: Item
    kind: str


@dataclass
class Request:
    """A lease call, or a settle.

    Attributes:
        began: when it was sent.
        history: the history that it names.
        answer: None until it is carried out.
        closed: the keys of a lease call that take no messages of it, since one of their messages is being put back.
    """

    began: float
    history: int
    call: int = 0
    whole: list[int] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    answer: Any = None


@dataclass
class Process:
    """A process: what it has to handle, what it has to send, and its requests."""

    name: str
    history: int
    items: list[Item] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    lease: Request | None = None
    settle: Request | None = None

    def left(self, lease: int) -> set[int]:
        """Return the messages of a lease whose outcomes are not confirmed."""
        return {item.seq for item in [*self.items, *(outcome.item for outcome in self.outcomes)] if item.lease == lease}

    def requests(self) -> list[Request]:
        return [request for request in (self.settle, self.lease) if request is not None]

    def closed(self) -> set[str]:
        return {outcome.item.key for outcome in self.outcomes if outcome.kind != "ack"}


@dataclass
class State:
    """What the database has: messages that wait, leases with their owner and messages, and the number of the last lease."""

    waiting: set[tuple[int, str]] = field(default_factory=set)
    leases: dict[int, tuple[str, set[tuple[int, str]]]] = field(default_factory=dict)
    number: int = 0


class Simulated:
    """Args: `skips` makes the database break a promise."""

    def __init__(self, seed: int, skips: str = "") -> None:
        self.chance = random.Random(seed)
        self.skips = skips
        self.made = MadeUp()
        self.state = State()
        self.reverted: list[State] = []
        """What a crash may lead back to."""
        self.history = 0
        self.names = (f"process {number}" for number in range(10**6))
        self.processes = [Process(next(self.names), 0) for _ in range(3)]
        self.frozen: Process | None = None

    def run(self, steps: int, *, complete: bool = True) -> MadeUp:
        rare: list[Callable[[], None]] = [self.crash, *[self.kill, self.expire, self.freeze] * 3]
        for _ in range(steps):
            self.chance.choice(rare)() if self.chance.random() < 0.1 else self.step()
        self.frozen = None
        while complete and (self.state.waiting or self.state.leases):
            self.step(publish=False)
            if self.chance.random() < 0.02:
                self.expire()
        return self.made

    def step(self, *, publish: bool = True) -> None:
        if publish and self.chance.random() < 0.1:
            self.publish()
        elif self.chance.random() < 0.4 and (
            sent := [(one, request) for one in self.processes for request in one.requests() if request.answer is None]
        ):
            self.carry_out(*self.chance.choice(sent))
        else:
            self.act(self.chance.choice([one for one in self.processes if one is not self.frozen]))

    # --- what goes wrong

    def freeze(self) -> None:
        self.frozen = None if self.frozen else self.chance.choice(self.processes)

    def kill(self) -> None:
        """A process is killed, with its requests on their way or not, and replaced."""
        process = self.chance.choice(self.processes)
        for request in process.requests():
            if request.answer is None and self.chance.random() < 0.5:
                self.carry_out(process, request)
        self.processes[self.processes.index(process)] = Process(next(self.names), self.history)

    def crash(self) -> None:
        """What was not on disk is reverted, from some point on. Each process loses its connections, with or without answers."""
        self.state = self.chance.choice([*self.reverted, self.state])
        self.reverted.clear()
        self.history += 1
        for process in self.processes:
            for request in process.requests():
                if request.answer is None or self.chance.random() < 0.5:
                    request.answer = "unknown"

    def expire(self) -> None:
        """All leases of an owner expire."""
        if owners := sorted({owner for owner, _ in self.state.leases.values()}):
            self.put_back(self.chance.choice(owners), set())

    # --- the database

    def not_on_disk(self) -> None:
        self.reverted.append(copy.deepcopy(self.state))

    def on_disk(self) -> None:
        if self.skips == "durable":
            self.not_on_disk()
        else:
            self.reverted.clear()

    def put_back(self, owner: str, known: set[int]) -> None:
        """End the leases of an owner that are not known."""
        self.not_on_disk()
        for lease in [lease for lease, (one, _) in self.state.leases.items() if one == owner and lease not in known]:
            self.state.waiting |= self.state.leases.pop(lease)[1]

    def publish(self) -> None:
        keys = [self.chance.choice("abc") for _ in range(self.chance.randint(1, 4))]
        answer = self.chance.choice(("ok", "ok", "unknown", None))
        self.state.waiting |= set(zip(self.made.publish(*keys, answer=answer), keys, strict=True))
        self.on_disk()

    def carry_out(self, process: Process, request: Request) -> None:
        if request.history != self.history:
            request.answer = "refused"
        elif request is process.settle:
            request.answer = self.settled(process.name, request)
        else:
            request.answer = self.leased(process.name)

    def leased(self, owner: str) -> list[Item]:
        busy = {key for one, held in self.state.leases.values() if one != owner for _, key in held}
        if self.skips == "busy":
            busy = set()
        messages = [one for one in sorted(self.state.waiting) if one[1] not in busy][: self.chance.randint(1, 5)]
        if self.skips == "order" and len(messages) > 1:
            messages = messages[1:]
        if not messages:
            return []
        self.not_on_disk()
        self.state.number += 1
        lease = self.state.number << 20 | self.chance.randrange(1 << 20)
        if self.skips != "again":
            self.state.waiting -= set(messages)
        if self.skips != "lost":
            self.state.leases[lease] = (owner, set(messages))
        return [Item(lease, *message) for message in messages]

    def settled(self, owner: str, request: Request) -> list[tuple[int, int | None]]:
        lost: list[tuple[int, int | None]] = [
            (lease, None) for lease in request.whole if self.state.leases.pop(lease, None) is None
        ]
        for (lease, seq, key), kind in request.outcomes:
            _, held = self.state.leases.get(lease, (owner, set()))
            if lease in request.whole:
                continue
            if (seq, key) not in held:
                lost.append((lease, seq))
            else:
                held.remove((seq, key))
                if kind != "ack":
                    self.state.waiting.add((seq, key))
            if lease in self.state.leases and not held:
                del self.state.leases[lease]
        self.on_disk()
        return [] if self.skips == "fence" else lost

    # --- a process

    def act(self, process: Process) -> None:
        if process.settle is not None and process.settle.answer is not None:
            self.read_settled(process, process.settle)
        elif process.lease is not None and process.lease.answer is not None:
            self.read_leased(process, process.lease)
        elif process.settle is None and process.outcomes and self.chance.random() < 0.5:
            self.send(process)
        elif process.lease is None and self.chance.random() < 0.4:
            process.lease = Request(self.made.tick(), process.history, closed=process.closed())
        else:
            self.handle(process)

    def handle(self, process: Process) -> None:
        """Handle the first message of a key. If that fails, the ones behind it go back, too."""
        keys = sorted({item.key for item in process.items} - process.closed())
        if not keys:
            return
        key = self.chance.choice(keys)
        run = sorted((item for item in process.items if item.key == key), key=lambda item: item.seq)
        fails = self.chance.random() < 0.1
        run = run if fails else run[:1]
        for item in run[:1]:
            self.made.handle(process.name, item.lease, item.seq, outcome="raised" if fails else "returned")
        for item in run:
            process.items.remove(item)
            kind = "ack" if not fails else "retry" if item is run[0] else "release"
            process.outcomes.append(Outcome(item, kind))
        if fails and process.lease is not None:
            process.lease.closed.add(key)

    def send(self, process: Process) -> None:
        """Send all outcomes, perhaps those of leases that they end as whole leases."""
        sent = list(process.outcomes)
        whole = [
            lease
            for lease in sorted({outcome.item.lease for outcome in sent})
            if process.left(lease) == {item.seq for item, kind in sent if item.lease == lease and kind == "ack"}
            and self.chance.random() < 0.5
        ]
        single = [outcome for outcome in sent if outcome.item.lease not in whole]
        call = self.made.call()
        self.made.line(
            process.name, "settle", call=call, consumer=CONSUMER, whole=whole, leases=[item.lease for item, _ in single],
            seqs=[item.seq for item, _ in single], kinds=[kind for _, kind in single], tx=None, history=str(process.history),
        )  # fmt: skip
        process.settle = Request(self.made.now, process.history, call, whole, sent)

    def read_settled(self, process: Process, request: Request) -> None:
        """Read an answer. If there is none, or if the history is another one, the outcomes are sent again."""
        process.settle = None
        answer = request.answer
        if answer not in ("unknown", "refused"):
            self.made.answer(process.name, request.call, lost=tuple(answer))
            process.outcomes = [outcome for outcome in process.outcomes if outcome not in request.outcomes]
            return
        self.made.answer(process.name, request.call, answer, lost=())
        if answer == "refused":
            self.check_in(process)

    def read_leased(self, process: Process, request: Request) -> None:
        process.lease = None
        answer = request.answer
        if answer == "refused":
            self.check_in(process)
        elif answer == "unknown" or (answer and self.chance.random() < 0.1):
            if process.history == self.history:
                self.put_back(process.name, self.known(process))
        elif answer:
            self.made.line(
                process.name, "lease", began=request.began, consumer=CONSUMER, owner=process.name, timeline=str(request.history),
                history=str(request.history), leases=[(answer[0].lease, len(answer))], seqs=[item.seq for item in answer],
                attempts=None, keys=[item.key for item in answer], digests=[item.seq for item in answer],
            )  # fmt: skip
            again = {item.seq for item in answer}
            process.items = [item for item in process.items if item.seq not in again]
            closed = request.closed | process.closed()
            process.items += [item for item in answer if item.key not in closed]
            process.outcomes += [Outcome(item, "release") for item in answer if item.key in closed]

    def known(self, process: Process) -> set[int]:
        return {item.lease for item in [*process.items, *(outcome.item for outcome in process.outcomes)]}

    def check_in(self, process: Process) -> None:
        """Compare the leases with those of the database, in another history."""
        process.history = self.history
        self.put_back(process.name, self.known(process))
        self.on_disk()

        held = {
            Item(lease, *message)
            for lease, (owner, messages) in self.state.leases.items()
            for message in messages
            if owner == process.name
        }
        process.items = [item for item in process.items if item in held]
        process.outcomes = [outcome for outcome in process.outcomes if outcome.item in held]
        forgotten = held - {*process.items, *(outcome.item for outcome in process.outcomes)}
        process.outcomes += [Outcome(item, "release") for item in sorted(forgotten)]
