"""The executor of plain messages, for handlers that take the payload alone and have no layer around them.

Most handlers are like that, and most of what `SingleExecutor` looks after can't happen to them. Such a handler never
sees its message, so only its end decides the outcome. A message is plain if its delivery has nothing special either, see
`Message.plain`. `SingleExecutor` runs all others, one at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

from headrace.runtime.execution.actors import Crew
from headrace.runtime.execution.execution import Execution
from headrace.runtime.execution.single_executor import STRETCH, SingleExecutor
from headrace.runtime.messages.message import Message
from headrace.runtime.slot import ActorSlot


class PlainExecutor(SingleExecutor):
    """Runs messages one after the other.

    Args:
        function: your function, which is called with the payload.
        execution: the parts that it uses.
    """

    _one_at_a_time = True

    def __init__(self, function: Callable[[Any], Awaitable[Any]], execution: Execution) -> None:
        super().__init__(execution, timeout=None)
        self._function = function

    async def _run(
        self, message: Message, slot: ActorSlot, crew: Crew, context: Context, base: Context
    ) -> Message | None:
        """Run messages until none is left to take, or until a handler has changed the context. Then it returns its message.

        For each message: check its lease, decode it, call the handler, and record the outcome. All of it is one function,
        since a call costs as much as any of these steps.
        """
        next_message, clock, decode = self._lanes.next, self._clock, self._decode
        function, ack, cancelling = self._function, self._acknowledger.ack, slot.task.cancelling
        durations = self._durations
        following: Message | None = message
        stretch, began = 0, clock()
        while following is not None:
            message = slot.delivery = following
            lease = message.lease
            if not message.plain or lease.cancelled:
                await super()._run(message, slot, crew, context, base)
                if message.call is not None:
                    return message  # with a span, which leaves a context that is slower to compare
            elif lease.term.until <= (now := clock()):
                self._acknowledger.give_up(message)
            else:
                try:
                    payload = decode(message.raw)
                except BaseException as error:  # code of users in a type may raise anything
                    self._undecodable(message, error)
                else:
                    if (measured := now >= durations.due) and (sampled := now >= durations.sample_due):
                        durations.begin_sample(lease, now)
                    try:
                        result = await function(payload)
                        if cancelling():
                            await slot.recover()
                    except BaseException as error:
                        message._payload = payload
                        if self._ends_actor(message, error, slot):
                            raise
                        if cancelling():
                            await slot.recover()
                    else:
                        if result is None:
                            ack(message)
                        else:
                            message._payload = payload
                            self._finish(message, result, slot)
                    finally:
                        if measured:
                            ended = clock()
                            if lease.seconds is not None:
                                lease.seconds[message.seq] = ended - now
                            if sampled:
                                durations.add(now, ended)
                    del payload  # so that the next one is decoded into the same memory
            stretch += 1
            if stretch == STRETCH:
                stretch, began = 0, await self._rest(began)
            if slot.spoilt:
                return message
            try:
                if context != base:  # as `changed`, without a call
                    return message
            except BaseException:
                return message
            following = next_message(message, crew.onward)
        return None
