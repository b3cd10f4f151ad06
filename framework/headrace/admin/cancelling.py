"""Cancelling messages: a consumer is done with them, although its handler has not handled them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import check_seq
from headrace.admin.watching.recording import first_seqs
from headrace.model.conditions.selections import MAX_CHOSEN
from headrace.model.errors import InvalidInput
from headrace.model.keys import check_key
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.records import Cancellation
from headrace.model.watching.audit import Change
from headrace.store.messages.cancel import Cancelled


def _check_choice(seqs: Sequence[int] | None, key: str | None, unique_key: str | None) -> None:
    """Raise `InvalidInput` unless this names messages in one way."""
    if sum(choice is not None for choice in (seqs, key, unique_key)) != 1:
        raise InvalidInput("Name the messages in one way: by seqs, by key or by unique_key.", field="seqs")
    if seqs is not None:
        if not seqs or len(seqs) > MAX_CHOSEN:
            raise InvalidInput(f"{len(seqs):,} seqs are given. Give 1 to {MAX_CHOSEN:,}.", field="seqs")
        for seq in seqs:
            check_seq("seqs", seq)
    if key is not None:
        check_key(key)
    PublishOptions(unique_key=unique_key)  # which checks it


class Cancelling(Base):
    """The call that cancels messages."""

    async def cancel(
        self,
        stream: str,
        name: str,
        *,
        seqs: Sequence[int] | None = None,
        key: str | None = None,
        unique_key: str | None = None,
    ) -> Cancellation:
        """Have a consumer be done with messages that its handler has not handled. Other consumers still get them.

        Waiting messages will not be handled, and their keys continue. By `seqs` and `unique_key`, messages at work are
        cancelled, too: their handlers are stopped within a second, and the next messages of their keys wait until these
        have ended. If a handler finishes before, its ack counts. If its process dies, the message is done all the same.

        Give one of the arguments.

        Args:
            seqs: these messages, at most 10,000.
            key: the messages of this key that wait now. Those that commit later are not meant.
            unique_key: the last message that was published with this unique key.

        Returns:
            How many messages there were, by what becomes of them.

        Raises:
            InvalidInput: the message of the unique key is scheduled, and so not published yet. Or more than 10,000
                cancellations of messages that the consumer has not reached would be pending. By key, those before stay
                cancelled.
        """
        consumer = await self._consumer(stream, name)
        _check_choice(seqs, key, unique_key)
        if key is not None:
            return Cancellation(cancelled=await self._cancel_key(stream, name, consumer, key))
        by, chosen = self._by, sorted(set(seqs or ()))

        async def cancel(connection: store.Executor) -> Cancelled:
            found: Cancelled | None
            if unique_key is None:
                found = await store.cancel(connection, consumer, chosen, by=by)
            else:
                found = await store.cancel_unique(connection, consumer, unique_key, by=by)
            if found is None:
                raise InvalidInput(
                    f"The message of the unique key {unique_key!r} is not published yet. "
                    f"To cancel it for all consumers, unschedule it in the stream {stream}.",
                    field="unique_key",
                )
            _describe(change, [*found.cancelled, *found.stopping])
            return found

        change = _change_of(stream, name, unique_key=unique_key)
        found = await self._change(change, cancel)
        return Cancellation(cancelled=len(found.cancelled), stopping=len(found.stopping), not_waiting=len(found.others))

    async def _cancel_key(self, stream: str, name: str, consumer: int, key: str) -> int:
        """Cancel the waiting messages of a key, in transactions that are short for the consumer. Returns their number."""
        count, above, until = 0, 0, None
        while until is None or above < until:
            found = await self._cancel_some(_change_of(stream, name, key=key), consumer, key, above, until)
            count, above, until = count + len(found.cancelled), found.reached, found.until
        return count

    async def _cancel_some(
        self, change: Change, consumer: int, key: str, above: int, until: int | None
    ) -> store.CancelledOfKey:
        async def cancel(connection: store.Executor) -> store.CancelledOfKey:
            found = await store.cancel_key(connection, consumer, key, above=above, until=until, by=self._by)
            _describe(change, found.cancelled)
            return found

        return await self._change(change, cancel)

    @property
    def _by(self) -> str | None:
        """Who asks. The role of the database is better known than the user of a system."""
        return self._actor.name if self._actor.via in ("http", "console") else None


def _change_of(stream: str, name: str, **details: str | None) -> Change:
    return Change(action="consumer.cancel", kind="consumer", name=name, stream=stream, details=details)


def _describe(change: Change, seqs: Sequence[int]) -> None:
    """Add the messages to the entry of the audit log. Without any there is no entry."""
    change.skipped = not seqs
    change.details |= {"messages": len(seqs), "seqs": first_seqs(seqs)}
