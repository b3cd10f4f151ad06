"""Messages of streams: list, publish and republish."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Unpack

from msgspec.structs import replace

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import (
    check_above,
    check_limit,
    check_seq,
    of_key,
    selection_of,
)
from headrace.admin.watching.recording import first_seqs, selected
from headrace.model.conditions.selections import Filter, RangeCriteria, Where
from headrace.model.durations import Duration
from headrace.model.errors import InDoubt, InvalidInput, StoreFull, StoreUnavailable
from headrace.model.keys import check_key
from headrace.model.messages.publish_options import PublishKeywords, PublishOptions
from headrace.model.messages.scheduled import ScheduledMessage, ScheduledPlace
from headrace.model.pages import Page, follow, listing, listing_by
from headrace.model.records import Erasure, Standing, StoredMessage
from headrace.model.text.error_text import MAX_ERROR
from headrace.model.watching.audit import Change

MAX_ERASED = 1000
"""Largest number of messages that a call erases."""

_MAX_ID = 2**63 - 1


def _check_erased(seqs: Sequence[int], reason: str | None) -> None:
    """Raise `InvalidInput` unless these messages may be erased for this reason."""
    if not seqs or len(seqs) > MAX_ERASED:
        raise InvalidInput(f"{len(seqs):,} seqs are given. Give 1 to {MAX_ERASED:,}.", field="seqs")
    for seq in seqs:
        check_seq("seqs", seq)
    if reason is not None and (len(reason) > MAX_ERROR or "\0" in reason):
        raise InvalidInput(f"The reason must have at most {MAX_ERROR:,} characters, and no NUL.", field="reason")


async def publish_by_hand(
    admin: Messages, stream: str, key: str, data: str, headers: str | None = None, *, message_id: str | None = None
) -> int | None:
    """Publish one message with an entry in the audit log, as a person does. The entry has the seq, not the contents.

    Returns:
        Its seq, see `Messages.send`.
    """
    change = Change(action="message.publish", kind="message", name=stream, stream=stream)

    async def publish(connection: store.Executor) -> int | None:
        seq = await store.publish(
            connection, stream, check_key(key), data, headers, PublishOptions(message_id=message_id)
        )
        change.details["seqs"] = [seq]
        return seq

    return await admin._change(change, publish)


async def messages_page(
    admin: Base, stream: str, chosen: store.SeqRange, *, limit: int, newest: bool
) -> Page[StoredMessage]:
    """Return messages of a stream in seq order: the first ones, or the last if `newest`."""
    check_limit(limit)
    async with admin._bounded(chosen.where, stream) as executor:
        return await store.messages(executor, stream, chosen, limit=limit, newest=newest, contents=admin._contents)


async def standings(admin: Base, stream: str, message: StoredMessage) -> list[Standing]:
    """Return the state of a message in each consumer of its stream, whose conditions judge it."""
    async with admin._bounded(None, stream) as executor:
        return await store.standing(executor, stream, message.seq, message.key)


class Messages(Base):
    """The calls about messages."""

    @listing_by(attrgetter("seq"))
    async def messages(
        self,
        stream: str,
        *,
        filter: Filter = None,  # noqa: A002 - the word of the field
        where: Where = None,
        start_seq: int | None = None,
        limit: int = 10,
        newest: bool = False,
        key: str | None = None,
    ) -> AsyncIterator[list[StoredMessage]]:
        """List messages in seq order, at most `limit`. They are the first from `start_seq` on, or the last if `newest`.

        `key`: only those with this key, which is its history. Without `one_message_per_key` or `index_keys`, they are searched
        in the stream, step by step.
        They are read in pages of `MAX_ANSWER_BYTES` of data and headers. `messages.pages` has the same arguments and returns an
        asynchronous iterator over these pages, from the newest to the oldest if `newest`.
        """
        chosen = selection_of(filter=of_key(filter, key), where=where, start_seq=start_seq)
        check_limit(limit)

        async def read(after: int | None, limit: int) -> Page[StoredMessage]:
            part = chosen
            if after is not None:
                part = replace(chosen, end_seq=after - 1) if newest else replace(chosen, start_seq=after + 1)
            return await messages_page(self, stream, part, limit=limit, newest=newest)

        async for page in follow(read, attrgetter("seq"), first=newest, limit=limit):
            yield page

    async def message(self, stream: str, key: str) -> StoredMessage | None:
        """Return the latest message of a key, or None if it has no message.

        Without `one_message_per_key` or `index_keys`, the stream is searched from its end, step by step.
        """
        return next(iter(await self.messages(stream, key=check_key(key), newest=True, limit=1)), None)

    async def standing(self, stream: str, key: str) -> tuple[int, list[Standing]] | None:
        """Return the seq of a key's latest message, and its state in each consumer. None if the key has no message."""
        message = await self.message(stream, key)
        return None if message is None else (message.seq, await standings(self, stream, message))

    async def republish(
        self, stream: str, target: str, *, dry_run: bool = False, **criteria: Unpack[RangeCriteria]
    ) -> int:
        """Publish messages of a stream again, in order, all or none. The stream `target` is another or the same.

        They become new messages, with new seqs and the current time. Bounds are inclusive.
        `dry_run` only counts the matches.

        Args:
            criteria: `filter`, `where`, `start_seq`, `end_seq`, `start_time` and `end_time`, see `RangeCriteria`.

        Returns:
            The number of messages.
        """
        selection = selection_of(**criteria)
        change = Change(
            action="stream.republish", kind="stream", name=stream, stream=stream, details=selected(selection)
        )
        async with self._bounded(selection.where, stream) as executor:
            count = await store.republish(executor, stream, target, selection, dry_run=dry_run)
            change.details |= {"target": target, "messages": count}
            if count and not dry_run:
                await self._record(executor, change)
        return count

    # --- erasing

    async def erase(self, stream: str, seqs: Sequence[int], *, reason: str | None = None) -> list[int]:
        """Delete messages for good: their rows, and the dead letters and message ids that are of them.

        No consumer gets them any more. A handler that has one in hand finishes, and its ack counts. The order of keys
        is kept. The remaining traces are in `erasures`. Copies outside of the database, such as backups, stay.

        Args:
            seqs: at most 1,000.
            reason: why, at most 2,000 characters, for people. It is stored.

        Returns:
            The seqs of the messages that were erased now, without those that are not there, or were erased before.
        """
        _check_erased(seqs, reason)
        chosen = sorted(set(seqs))
        # The role of the database is better known than the user of a system.
        by = self._actor.name if self._actor.via in ("http", "console") else None
        change = Change(action="message.erase", kind="message", name=stream, stream=stream, details={"reason": reason})

        async def erase(connection: store.Executor) -> store.Erased:
            found = await store.erase_contents(connection, stream, chosen, by=by, reason=reason)
            change.skipped = not found.seqs
            change.details |= {"messages": len(found.seqs), "seqs": first_seqs(found.seqs)}
            return found

        found = await self._change(change, erase)
        await store.forget_erased(self._database, found.consumers, chosen)
        return found.seqs

    @listing
    async def erasures(self, stream: str, *, above: int = 0, limit: int = 100) -> AsyncIterator[list[Erasure]]:
        """List what is left of erased messages with a seq above `above`, in seq order, at most `limit`."""
        check_above(above)
        check_limit(limit)

        async def read(after: int | None, limit: int) -> Page[Erasure]:
            return await store.erasures(self._database, stream, above=after or above, limit=limit)

        async for page in follow(read, lambda erasure: erasure.seq, limit=limit):
            yield page

    # --- scheduled messages

    @listing
    async def scheduled_messages(
        self, stream: str, *, limit: int | None = 100
    ) -> AsyncIterator[list[ScheduledMessage]]:
        """List the messages that the stream publishes later, in the order in which they are due, at most `limit`. None for
        all. Raises `UnknownStream`.
        """
        check_limit(limit)

        async def read(after: ScheduledPlace | None, limit: int) -> Page[ScheduledMessage]:
            return await store.scheduled_messages(
                self._database, stream, after=after, limit=limit, contents=self._contents
            )

        async for page in follow(read, attrgetter("place"), limit=limit):
            yield page

    async def unschedule(self, stream: str, *, ids: Sequence[int] | None = None) -> int:
        """Cancel scheduled messages before they are published: no consumer gets them. Those that were published already
        stay. A unique key of a cancelled message is free, and its message id stays known for the stream's `dedupe_window`.

        Args:
            ids: the ids of at most 10,000 messages, as `scheduled_messages` lists them. None for all, of which one call
                cancels the first 10,000 that are due.

        Returns:
            The number of cancelled messages.

        Raises:
            UnknownStream.
        """
        for id_ in ids or ():
            if not isinstance(id_, int) or isinstance(id_, bool) or not 1 <= id_ <= _MAX_ID:
                raise InvalidInput(
                    f"{id_!r} is not the id of a scheduled message. Ids are whole numbers, and the first is 1.",
                    field="ids",
                )
        details = {} if ids is None else {"ids": first_seqs(ids)}
        change = Change(action="message.unschedule", kind="message", name=stream, stream=stream, details=details)

        async def unschedule(connection: store.Executor) -> int:
            count = await store.unschedule(connection, stream, ids)
            change.skipped = not count
            change.details["messages"] = count
            return count

        return await self._change(change, unschedule)

    # --- publishing: data and headers are JSON text, which is stored unchanged

    async def send(
        self, stream: str, key: str, data: str, headers: str | None = None, **options: Unpack[PublishKeywords]
    ) -> int | None:
        """Publish one message. For the options, see `App.publish`.

        Returns:
            Its seq. If the id was published before, the seq of the first message, and if a message of the unique key is
            pending, the seq of that one. None for a scheduled message, and over HTTP, since the server doesn't return
            it.
        """
        chosen = PublishOptions.of(**options)
        return await store.publish(self._database, stream, check_key(key), data, headers, chosen)

    async def send_many(
        self,
        stream: str,
        keys: Sequence[str],
        data: Sequence[str],
        headers: Sequence[str | None],
        *,
        expires_in: Duration | None = None,
    ) -> int:
        """Publish messages in order, all or none, at most 10,000 over HTTP. The lists are parallel. `expires_in`: see `send`.

        Returns:
            The number of published messages. Messages that `dedupe` found unchanged are not counted.

        Raises:
            InDoubt: it is not known whether they were published.
        """
        committing = False
        options = PublishOptions.of(expires_in=expires_in)
        try:
            async with self._database.transaction() as connection:
                published = await store.publish_many(connection, stream, keys, data, headers, options)
                committing = True
        except StoreFull:
            raise
        except StoreUnavailable as error:
            if not committing:
                raise
            raise InDoubt(f"{error} The connection broke during the commit.") from error
        return published
