"""The outcomes of a delivery, and the exceptions by which a handler chooses one.

A handler that returns acks its message. A handler that raises nacks it, and the message is delivered again
after its backoff. `Retry` also chooses the delay. `Snooze` does so without counting the attempt. `Reject` makes the
message a dead letter immediately.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import HeadraceError, InvalidInput, LeaseLost

Kind = Literal["ack", "retry", "release", "reject", "invalid", "cancel"]
"""ack: handled. retry: failed, and delivered again later. release: never started, and returned. reject and
invalid: made a dead letter. cancel: an operator has cancelled it, so it is done.
"""


class Retry(HeadraceError):
    """Raise this in a handler to have the message delivered again. The attempt counts.

    `after` is the delay, in seconds or as text such as "30s". Without `after` the consumer's backoff decides.
    """

    def __init__(self, reason: str = "the handler asked for a retry", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else seconds(after, "after")


class Snooze(Retry):
    """Raise this in a handler to have the message delivered again later, although nothing has failed. The attempt
    doesn't count, so a message may be snoozed any number of times.

    `after` is the delay, in seconds or as text such as "30s". With order per key, later messages of the key wait
    as well.
    """

    def __init__(self, after: Duration, reason: str = "the handler snoozed the message") -> None:
        super().__init__(reason, after=seconds(after, "after"))  # None would mean immediately, again and again

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.after, str(self))


class Reject(HeadraceError):
    """Raise this in a handler to make the message a dead letter immediately, because no attempt could succeed."""

    def __init__(self, reason: str = "the handler rejected the message") -> None:
        super().__init__(reason)


class Unfit(Reject):
    """A `Reject` for a payload that doesn't have the handler's type. For adapters that decode payloads themselves.

    The dead letter looks like one with a payload that the framework could not decode.
    """


class Release(HeadraceError):
    """Raise this in an adapter to release the delivery, because something that it needs is missing and no
    message is at fault.

    The attempt doesn't count, and a batch is not bisected. Without `after` the messages may be delivered again at
    once, so wait for what is missing before you raise this. With `after`, in seconds or as text such as "30s", they
    are delivered again after it, and the circuit breaker counts a failure.
    """

    def __init__(self, reason: str = "the handler released the message", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else seconds(after, "after")


def misreturned(result: Any) -> InvalidInput | None:
    """Return the error of a handler that has returned the class of an outcome, as in `return Retry`. Otherwise the class would
    be a value like any other, and the message acked.
    """
    if not (isinstance(result, type) and issubclass(result, (Retry, Reject))):
        return None
    name = result.__name__
    return InvalidInput(f"The handler returned the class {name}. Return an object of it, {name}(…), or raise it.")


def deciding(error: BaseException) -> BaseException:
    """Return the exception that decides the outcome. Task groups raise those of their tasks as a group, which may hold
    further groups.

    In a group, `LeaseLost` decides before `Reject`, before any exception that is no outcome, `Retry`, `Release` and
    `Snooze`. Of several of one kind it is the one with the longest `after`. If an exception that is no outcome decides,
    the group itself is returned. Cancellations don't count.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    raised = list(_leaves(error))
    for kind in (LeaseLost, Reject):
        for one in raised:
            if isinstance(one, kind):
                if len(raised) > 1 and one.__cause__ is None:
                    one.__cause__ = error  # the traceback shows the others, too
                return one
    asked = [one for one in raised if isinstance(one, (Retry, Release))]
    if not asked or len(asked) < sum(isinstance(one, Exception) for one in raised):
        return error
    return max(asked, key=lambda one: (not isinstance(one, Snooze), isinstance(one, Retry), one.after or 0.0))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


class Failure(msgspec.Struct, frozen=True):
    """An outcome other than an ack. `delay` is the number of seconds until a retry, or None to retry immediately.
    A release has an error if something that the consumer needs is missing. `error_type` is the qualified name of the
    exception's class, or None if there was no exception. `exception` itself is kept until the outcome is settled.
    `repeats` says that another message of its batch failed by the same exception, which is logged for that one.
    """

    kind: Kind
    delay: float | None = None
    error: str | None = None
    traceback: str | None = None
    error_type: str | None = None
    exception: BaseException | None = None
    repeats: bool = False


RELEASE = Failure("release")
CANCEL = Failure("cancel")


class HandlingReport(msgspec.Struct, gc=False):
    """How a worker process has handled messages, for a consumer that keeps a history.

    `counts` has how many messages each whole lease of the settlement has, and `firsts` the first seq of those whose seqs
    follow one another and that had none expired, None for others. `seqs` are the messages that are settled one by one.
    `whole_seconds` has how long the handlers of the former took, lease after lease in the order of the lease, as numbers of
    IEEE 754 binary32 with the highest byte first, NaN if that was not measured. `seconds` has the same of the latter, None
    if that was not measured. `expired` lists messages that expired before their handler began. `process` is the name of the
    worker process.
    """

    process: str
    counts: list[int] = []
    firsts: list[int | None] = []
    whole_seconds: bytes = b""
    seqs: list[int] = []
    seconds: list[float | None] = []
    expired: list[int] = []


class Settlement(msgspec.Struct, gc=False):
    """Outcomes of one consumer, to settle in one call.

    `whole` lists leases in which all remaining messages are acked. `leases`, `seqs` and `failures` are
    parallel lists of single messages. A failure of None is an ack. `report` is for a consumer that keeps a history.
    """

    whole: list[int] = []
    leases: list[int] = []
    seqs: list[int] = []
    failures: list[Failure | None] = []
    report: HandlingReport | None = None

    def __bool__(self) -> bool:
        return bool(self.whole or self.leases)
