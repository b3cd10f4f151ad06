"""The protocol of worker processes (an errand is a request), and the code that runs in them.

An errand carries the published JSON, which is cheaper to send than objects. The worker process
decodes it into the handler's types. An answer carries what the handler returned or raised. If that
can't be pickled, the answer describes it.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Hashable
from contextvars import copy_context
from functools import reduce
from multiprocessing import connection, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import msgspec

from headrace.flow.lease import Lease
from headrace.model.clock import suspension_clock
from headrace.model.durations import Duration
from headrace.model.errors import ConfigurationError, HeadraceError, LeaseLost
from headrace.model.outcomes import Reject, Retry, deciding
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message, lease_time
from headrace.runtime.stop_signals import STOP_SIGNALS, handled_here, handled_signals, leave_alone


class ProcessFailed(HeadraceError):
    """A failure in a worker process that the original exception can't represent."""


class Place(msgspec.Struct, frozen=True):
    """The location of a function that every process with the same code can import."""

    module: str
    name: str

    def find(self) -> Any:
        """Import the function. Raises `ImportError` or `AttributeError`."""
        return reduce(getattr, self.name.split("."), importlib.import_module(self.module))


class Sent(msgspec.Struct, array_like=True):
    """The part of a message that is sent to a worker process."""

    key: str
    seq: int
    attempt: int
    created: int
    raw: str
    raw_headers: str | None
    lane: Hashable


class Request(msgspec.Struct, array_like=True):
    """A request: one call of a handler. `until` is when the first of the leases ends, on the clock of all processes."""

    stream: str
    consumer: str
    messages: list[Sent]
    until: float


class Answer(msgspec.Struct, array_like=True):
    """The result of a request. `failures` are the outcomes of single messages of a batch."""

    result: Any = None
    failures: dict[int, Retry | Reject] = {}
    error: Exception | None = None
    trace: str | None = None


class DetachedMessage(Message):
    """A message in a worker process. It has its fields, but no connection for settling or publishing."""

    def ack(self, tx: Any = None) -> NoReturn:
        _refuse("ack", "Return instead.")

    def nack(self, delay: Duration | None = None) -> NoReturn:
        _refuse("nack", "Raise Retry(after=…) instead.")

    def snooze(self, delay: Duration) -> NoReturn:
        _refuse("snooze", "Raise Snooze(…) instead.")

    def reject(self, reason: str = "") -> NoReturn:
        _refuse("reject", "Raise Reject(…) instead.")

    def extend(self) -> NoReturn:
        _refuse("extend", "The worker that holds the lease extends it.")

    def publish(self, stream: str, key: str, data: Any, **options: Any) -> NoReturn:
        _refuse("publish", "Declare publishes='a-stream', and return the messages instead.")


def _refuse(what: str, instead: str) -> NoReturn:
    raise ConfigurationError(f"A handler with runner='process' can't {what} a message. {instead}")


def request(delivery: Message | Batch) -> bytes:
    """Return the pickled request for a delivery. Raises `LeaseLost`."""
    sent = [Sent(m.key, m.seq, m.attempt, m.created, m.raw, m.raw_headers, m.lane) for m in delivery.messages]
    until = suspension_clock() + lease_time(delivery.messages)
    return pickle.dumps(Request(delivery.stream, delivery.consumer, sent, until), pickle.HIGHEST_PROTOCOL)


def opened(answer: bytes, delivery: Message | Batch) -> Any:
    """Open an answer: return what the handler returned, or raise what it raised."""
    try:
        found: Answer = pickle.loads(answer)
    except Exception as error:
        raise ProcessFailed(f"The response of the handler's process can't be read: {error!r}.") from error
    if found.error is not None:
        raise found.error from None if found.trace is None else ProcessFailed(f"in its process:\n{found.trace}")
    if isinstance(delivery, Batch):
        delivery.failures.update(found.failures)
    return found.result


def end_of(process: BaseProcess) -> Any:
    """Return what `multiprocessing.connection.wait` waits for until a process has ended. The sentinel of the process waits
    for those that it has forked, too, which inherit the other end."""
    try:
        return connection.Connection(os.pidfd_open(process.pid or 0), writable=False)  # which closes it in the end
    except (AttributeError, OSError):  # not on Linux, or an old one
        return process.sentinel


# --- in the worker process


def serve(parent: connection.Connection, place: Place, batch: bool) -> None:
    """Run a worker process: find the handler, report whether that succeeded, and run errands until the
    parent closes the pipe. It leaves the stop signals alone, since the parent drains then, and its workers must live
    until it is done."""
    os.setpgid(0, 0)  # what a handler starts is killed with it
    with handled_here():
        for number in handled_signals():
            signal.signal(number, leave_alone)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        threading.Thread(target=_die_with_the_parent, daemon=True).start()
        _serve(parent, place, batch)


def _serve(parent: connection.Connection, place: Place, batch: bool) -> None:
    try:
        handler = Handler(place.find(), batch=batch)
    except BaseException as error:  # such as SystemExit from the import of its module
        parent.send_bytes(f"{type(error).__name__}: {error}".encode(errors="replace"))
        return
    parent.send_bytes(b"")
    while True:
        try:
            request = parent.recv_bytes()
        except (EOFError, OSError):
            return
        # Values that a handler sets in its context are not there for the next message.
        parent.send_bytes(copy_context().run(_answer, handler, pickle.loads(request)))


def _die_with_the_parent() -> None:
    """Exit when the parent has died, with what the handler has started. A killed parent can't stop its workers, and
    another process repeats their work."""
    parent = parent_process()
    assert parent is not None
    connection.wait([end_of(parent)])
    os.killpg(0, signal.SIGKILL)


def _answer(handler: Handler, request: Request) -> bytes:
    try:
        answer = _run(handler, request)
    except BaseException as error:
        answer = Answer(error=_sendable(deciding(error)), trace=_trace(error))
    sys.stdout.flush()
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        problem = ProcessFailed(f"The return value of the handler {handler.name!r} can't leave its process: {error}.")
        return pickle.dumps(Answer(error=problem), pickle.HIGHEST_PROTOCOL)


def _message(handler: Handler, request: Request, sent: Sent, lease: Lease) -> DetachedMessage:
    stored = (request.stream, request.consumer, *msgspec.structs.astuple(sent)[:-1])
    leased = (lease, sent.lane, None, handler.decode(sent.raw))
    return DetachedMessage(*(*stored, *leased))


def _run(handler: Handler, request: Request) -> Answer:
    held = Lease(0, (), (), float("inf"))
    messages = [_message(handler, request, sent, held) for sent in request.messages]
    if request.until <= suspension_clock():
        raise LeaseLost("The process was frozen, and a lease ended before the handler began.")
    if not handler.batch:
        return Answer(handler.apply(messages[0].data, messages[0]))
    batch = Batch(request.stream, request.consumer, tuple(messages))
    return Answer(handler.apply(batch.payloads, batch), batch.failures)


def _sendable(error: BaseException) -> Exception:
    """Return the exception if it survives pickling, otherwise one that describes it. `SystemExit` must
    not reach the parent."""
    if isinstance(error, Exception):
        try:
            if type(pickle.loads(pickle.dumps(error))) is type(error):
                return error
        except Exception:
            pass
    return ProcessFailed("".join(traceback.format_exception_only(error)).strip())


def _trace(error: BaseException) -> str:
    """Return the traceback as text, which becomes the cause of the exception, as in the standard
    library's process pools."""
    return "".join(traceback.format_exception(error))
