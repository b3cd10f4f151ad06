"""The history log: what this process published, leased, handled and settled, one line of JSON each.

It is off unless `HEADRACE_HISTORY` names a directory when Headrace is imported. Then the functions that do these things are
wrapped by `recorded`. Otherwise they are left as they are. docs/history.md describes the lines, for programs that check
whether the promises were kept.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.model.clock import suspension_clock
from headrace.model.errors import InDoubt, LeaseLost, StoreUnavailable, TimelineChanged
from headrace.model.messages.publish_options import PLAIN, due

FORMAT = 1
"""The version of the format."""

MAX_BUFFERED = 512
"""Lines that are kept until they are written to the file."""

F = TypeVar("F", bound=Callable[..., Any])


class HistoryLog:
    """The log of one process. A forked process begins a separate file.

    An event is in the file before the process sends it, so a killed process leaves no outcome that its file
    doesn't name. Everything else is buffered.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = threading.Lock()
        self._pid = 0
        self._file: int | None = None
        self._lines: list[bytes] = []
        self._calls = count(1)
        self._transactions: dict[int, int] = {}
        self._consumers: dict[int, Any] = {}
        atexit.register(self.flush)

    def write(self, event: str, *, flush: bool = False, **fields: Any) -> None:
        """Append a line. `flush` writes it to the file, with all lines before it."""
        self._append(msgspec.json.encode(fields)[1:-1], event, flush)

    def _append(self, fields: bytes, event: str, flush: bool) -> None:
        with self._turn:
            if self._pid != os.getpid():
                self._begin_file()
            if self._file is None:
                return
            self._lines.append(b'{"t":%.6f,"event":"%s",%s}\n' % (suspension_clock(), event.encode(), fields))
            if flush or len(self._lines) >= MAX_BUFFERED:
                self._write_lines()

    def flush(self) -> None:
        """Write all lines to the file, at the end of the process."""
        with self._turn:
            if self._pid == os.getpid():
                self._write_lines()

    def _begin_file(self) -> None:
        self._pid, self._lines = os.getpid(), []
        self._transactions, self._consumers = {}, {}
        path = self._directory / f"{socket.gethostname()}-{self._pid}-{time.time_ns()}.ndjson"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._give_up(error)
        header = {"version": FORMAT, "process": self._pid, "clock": _clock_name(), "wall": time.time()}
        self._lines.append(
            b'{"t":%.6f,"event":"process",%s}\n' % (suspension_clock(), msgspec.json.encode(header)[1:-1])
        )

    def _write_lines(self) -> None:
        lines, self._lines = b"".join(self._lines), []
        try:
            while self._file is not None and lines:
                lines = lines[os.write(self._file, lines) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Log nothing more. Messages are handled without a history."""
        self._file = None
        logging.getLogger("headrace").warning("HEADRACE_HISTORY: the history can't be written: %s", error)

    @contextmanager
    def call(self, event: str, refusing: tuple[type[Exception], ...] = (), **fields: Any) -> Iterator[dict[str, Any]]:
        """Write a call before it is made, and its answer afterwards. Yields a place for the fields of the answer.

        Args:
            event: the name of the call. That of the answer is `answer`.
            refusing: errors after which the call certainly changed nothing. After others that is unknown.
        """
        number = next(self._calls)
        self.write(event, flush=True, call=number, **fields)
        more: dict[str, Any] = {}
        answer = "unknown"
        try:
            yield more
            answer = "ok"
        except InDoubt:
            raise
        except refusing:
            answer = "refused"
            raise
        finally:
            self.write("answer", call=number, answer=answer, **more)

    def transaction_number(self, executor: Any) -> int | None:
        """Return the number of a transaction of Headrace, 0 for another connection of the user, and None for a `Database`,
        which commits what it executes."""
        if hasattr(executor, "ack_and_commit"):
            if (number := self._transactions.get(id(executor))) is None:
                number = self._transactions[id(executor)] = next(self._calls)
            return number
        return None if hasattr(executor, "dsn") else 0

    def transaction_ended(self, transaction: Any) -> None:
        """The transaction gets another number, if another object has its identity."""
        self._transactions.pop(id(transaction), None)

    def consumer(self, consumer: int, spec: Any) -> None:
        """Write the settings of a consumer, unless they are those that were written last."""
        if self._consumers.get(consumer) != spec:
            self._consumers[consumer] = spec
            self.write(
                "consumer", consumer=consumer, stream=spec.stream, name=spec.name, filters=spec.filters, ordered=spec.ordered,
                conditional=spec.where is not None, max_deliver=spec.max_deliver,
            )  # fmt: skip

    def acked_within(self, consumer: int, message: Any) -> None:
        """Write an ack in a transaction that the user commits later. Its call has the id of the transaction."""
        self.write(
            "settle", flush=True, call=f"x{message.xid}", consumer=consumer, whole=[], leases=[message.lease.id], seqs=[message.seq],
            kinds=["ack"], tx=0, history=message.lease.history,
        )  # fmt: skip

    def handling(self, call: F, consumer: int) -> F:
        """Return the call of a handler with its beginning and its end in the log."""
        runs = count(1)

        async def handled(payload: Any, delivery: Any, **dependencies: Any) -> Any:
            run = next(runs)
            held = ",".join(f"[{message.lease.id},{message.seq}]" for message in delivery.messages)
            self._append(b'"consumer":%d,"run":%d,"messages":[%s]' % (consumer, run, held.encode()), "begin", False)
            outcome = b"raised"
            try:
                result = await call(payload, delivery, **dependencies)
                outcome = b"returned"
                return result
            finally:
                self._append(b'"consumer":%d,"run":%d,"outcome":"%s"' % (consumer, run, outcome), "end", False)

        return handled  # type: ignore[return-value]


def _clock_name() -> str:
    """Name the clock of the times: processes of one boot of one machine share it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = str(os.getpid())  # then no other process is known to share it
    return f"{socket.gethostname()} {boot}"


def _log() -> HistoryLog | None:
    directory = os.environ.get("HEADRACE_HISTORY")
    return HistoryLog(Path(directory).expanduser().absolute()) if directory else None


LOG = _log()


def recorded(recorder: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that calls `recorder` with the log, the function and its arguments, if there is a log."""

    def decorate(function: F) -> F:
        if LOG is None:
            return function

        @functools.wraps(function)
        async def with_history(*args: Any, **kwargs: Any) -> Any:
            return await recorder(LOG, function, *args, **kwargs)

        return with_history  # type: ignore[return-value]

    return decorate


def _digests(data: Sequence[str | None]) -> list[int | None]:
    return [None if text is None else zlib.crc32(text.encode()) for text in data]


async def published(
    log: HistoryLog, publish: Any, executor: Any, stream: str, keys: Any, data: Any, *rest: Any, **named: Any
) -> Any:
    """Record `headrace.store.publish`, `publish_many` and `publish_all`, whose arguments these are."""
    one = isinstance(keys, str)
    options = named.get("options", rest[1] if len(rest) > 1 else PLAIN)
    tx, scheduled = log.transaction_number(executor), due(options) is not None
    every = [keys] if one else list(keys)
    digests = _digests([data] if one else data)
    with log.call("publish", stream=stream, keys=every, digests=digests, tx=tx, scheduled=scheduled) as answer:
        result = await publish(executor, stream, keys, data, *rest, **named)
        if one:
            answer["seq"] = result
        answer["count"] = int(result is not None) if one else result
        return result


async def leased(
    log: HistoryLog, lease: Any, executor: Any, consumer: int, owner: Any, limit: int, **options: Any
) -> Any:
    """Record `headrace.store.lease`."""
    began = suspension_clock()
    batch = await lease(executor, consumer, owner, limit, **options)
    if batch.lease_id is not None:
        shares = options.get("shares")
        ends = [len(batch.seqs)] if shares is None else [min(end, len(batch.seqs)) for end in accumulate(shares)]
        leases = zip(batch.lease_ids or [batch.lease_id], ends, strict=False)
        log.write(
            "lease", flush=True, began=began, consumer=consumer, owner=owner if shares is None else None,
            timeline=batch.timeline, history=batch.history, leases=list(leases), seqs=batch.seqs, attempts=batch.attempts,
            keys=batch.keys, digests=_digests(batch.data),
        )  # fmt: skip
    return batch


async def settled(log: HistoryLog, settle: Any, executor: Any, consumer: int, settlement: Any, **options: Any) -> Any:
    """Record `headrace.store.settle`."""
    kinds = [failure.kind if failure else "ack" for failure in settlement.failures]
    with log.call(
        "settle", (TimelineChanged,), consumer=consumer, whole=settlement.whole, leases=settlement.leases,
        seqs=settlement.seqs, kinds=kinds, tx=None, history=options.get("history"),
    ) as answer:  # fmt: skip
        lost = await settle(executor, consumer, settlement, **options)
        answer["lost"] = [(one.lease_id, one.seq) for one in lost]
        return lost


async def acked_and_committed(
    log: HistoryLog, commit: Any, transaction: Any, acks: Any, what: str, **options: Any
) -> Any:
    """Record `Transaction.ack_and_commit`, which looks up an outcome in doubt before it returns or raises."""
    with log.call(
        "settle", (StoreUnavailable, LeaseLost), consumer=acks.consumer, whole=[], leases=acks.leases, seqs=acks.seqs,
        kinds=["ack"] * len(acks.seqs), tx=log.transaction_number(transaction), history=options.get("history"),
    ) as answer:  # fmt: skip
        await commit(transaction, acks, what, **options)
        answer["lost"] = []


async def committed(log: HistoryLog, commit: Any, transaction: Any) -> Any:
    """Record the commit of `App.transaction`."""
    with log.call("commit", (StoreUnavailable,), tx=log.transaction_number(transaction)):
        await commit(transaction)
