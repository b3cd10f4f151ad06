"""The end of messages: reports those that the store has made dead letters, once each, and runs your hooks for them.

The outcome is in the store before it is reported. So a report is true, and a process that dies in between has stored the
dead letter without a report: hooks are called at most once. Other dead letters are not reported here: a message
whose last process died, and one that was received over HTTP or by SQL. The counts of dead letters have these, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from headrace.model.log import Log
from headrace.model.outcomes import Failure, Reject, Retry, Unfit
from headrace.model.specs import ConsumerSpec
from headrace.runtime.instruments import Instruments
from headrace.runtime.isolation import failed_inside, in_own_task
from headrace.runtime.log_burst import Burst
from headrace.runtime.log_context import identity
from headrace.runtime.messages.message import Message
from headrace.runtime.stored_consumer import StoredConsumer

log = Log("headrace")

DeadLetterHook = Callable[[Message, BaseException], Awaitable[Any]]
"""An async function that is called with a dead letter's message and the exception that it died of."""

HOOK_TIMEOUT = 10.0
"""Seconds after which a hook is cancelled."""

MAX_WAITING = 1_000
"""Largest number of dead letters of one consumer that wait for hooks. Hooks are not called for more."""


class DeadLetters:
    """Reports the dead letters that one pipeline makes.

    Args:
        hooks: called for each of them, one after the other.
        instruments: telemetry, or None when it is off.

    Attributes:
        count: how many there were.
    """

    def __init__(
        self, consumer: StoredConsumer, hooks: Sequence[DeadLetterHook] = (), instruments: Instruments | None = None
    ) -> None:
        self.count = 0
        self._settings = consumer.settings
        self._hooks = hooks
        self._instruments = instruments
        self._burst = Burst(consumer.time.clock)
        self._overflow = Burst(consumer.time.clock)
        self._waiting: deque[tuple[Message, BaseException]] = deque()
        self._news = anyio.Event()
        self._done: anyio.Event | None = None  # set when no dead letter waits for hooks any more

    def settled(self, message: Message, failure: Failure) -> None:
        """Report a failure that is in the store, if it was the message's last."""
        spec = self._settings.spec
        reason = cause_of_death(spec, message, failure)
        if reason is None:
            return
        if reason == "exhausted" and spec.on_exhausted == "drop":
            self._log("message dropped", message, failure, reason)
            return
        self.count += 1
        self._log("message dead-lettered", message, failure, reason)
        error = failure.exception or _exception(failure)
        if self._instruments is not None:
            self._instruments.dead_lettered(spec, message, reason, error)
        if self._hooks:
            self._enqueue(message, error)

    def _log(self, event: str, message: Message, failure: Failure, reason: str) -> None:
        if self._burst.skipped and self._burst.begins:
            log.error(
                f"more {event.replace('message', 'messages')}", consumer=message.consumer, messages=self._burst.skipped
            )
        if self._burst.admits(repeats=failure.repeats):
            log.error(
                event,
                **identity(message),
                attempt=message.attempt,
                reason=reason,
                error_type=failure.error_type,
                error=failure.error,
                exc_info=failure.exception,
            )

    # --- hooks

    def _enqueue(self, message: Message, error: BaseException) -> None:
        if len(self._waiting) >= MAX_WAITING:
            if self._overflow.admits():
                hint = f"{MAX_WAITING} wait for them already"
                log.error("dead letter without its hooks", **identity(message), hint=hint)
            return
        self._waiting.append((message, error))
        if self._done is None:
            self._done = anyio.Event()
        self._news.set()

    async def run(self) -> None:
        """Call the hooks until cancelled."""
        while True:
            while self._waiting:
                message, error = self._waiting.popleft()
                for hook in self._hooks:
                    await _call(hook, message, error)
            if self._done is not None:
                self._done.set()
                self._done = None
            self._news = anyio.Event()
            await self._news.wait()

    async def finish(self, timeout: float = HOOK_TIMEOUT) -> None:
        """Wait until the hooks were called for all dead letters so far, at most `timeout` seconds."""
        if self._done is not None:
            with anyio.move_on_after(min(timeout, HOOK_TIMEOUT)):
                await self._done.wait()
            if self._waiting:
                log.error(
                    "dead letters without their hooks", consumer=self._settings.spec.name, messages=len(self._waiting)
                )


def cause_of_death(spec: ConsumerSpec, message: Message, failure: Failure) -> str | None:
    """Return the reason for which this failure ends the message, or None if it is delivered again."""
    if failure.kind == "reject":
        return "rejected"
    if failure.kind == "invalid":
        return "invalid"
    exhausted = failure.kind == "retry" and -1 != spec.max_deliver <= message.attempt
    return "exhausted" if exhausted else None


async def _call(hook: DeadLetterHook, message: Message, error: BaseException) -> None:
    problem: BaseException | None = None
    with anyio.move_on_after(HOOK_TIMEOUT) as scope:
        try:
            await in_own_task(hook, message, error)
        except BaseException as raised:  # your code may raise anything, and the other hooks continue
            if not failed_inside(raised):
                raise
            problem = raised
    if scope.cancelled_caught:
        problem = TimeoutError(f"took longer than {HOOK_TIMEOUT:g} s")
    if problem is not None:
        name = getattr(hook, "__qualname__", repr(hook))
        log.error("dead letter hook failed", **identity(message), hook=name, error=problem, exc_info=problem)


def _exception(failure: Failure) -> BaseException:
    """Return an exception for a failure without one."""
    kind = {"reject": Reject, "invalid": Unfit}.get(failure.kind, Retry)
    return kind(failure.error or "")
