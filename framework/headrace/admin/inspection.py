"""Looking closely: journeys, searches, and what a seek would do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Unpack

from msgspec import structs

from headrace import store
from headrace.admin.base import Base
from headrace.admin.journeys import MAX_STOPS, read_journey
from headrace.admin.validation import check_limit, check_seq, filters_of, of_key, search_of
from headrace.flow.diagnosis import Situation, diagnose
from headrace.model.clock import utc
from headrace.model.conditions.selections import SearchCriteria
from headrace.model.errors import InvalidInput
from headrace.model.records import ConsumerInfo
from headrace.model.watching.completions import CompletionPage
from headrace.model.watching.diagnosis import Diagnosis, Waiting
from headrace.model.watching.journeys import Journey
from headrace.model.watching.operations import PushBreaker, PushCounts, PushStatus, SearchStep, SeekPreview
from headrace.store import ReportOfConsumer
from headrace.store.catalog.recent_events import KEPT


class Inspection(Base):
    """The calls that look closely and change nothing."""

    async def journey(
        self, stream: str, seq: int, *, limit: int = MAX_STOPS, after: str | None = None
    ) -> Journey | None:
        """Return a message by its seq, and what became of it in each consumer of the stream. None if nothing is left of it.

        Unless the consumer has the setting `history`, the engine keeps nothing about a message that it is done with. The
        journey therefore says what is known of it, and from where.

        Args:
            limit: the most consumers, at most 1,000.
            after: only consumers with a later name, `next` of the answer before.
        """
        return await read_journey(self, stream, seq, limit=limit, after=after)

    async def search(self, stream: str, *, limit: int = 50, **criteria: Unpack[SearchCriteria]) -> SearchStep:
        """Do one step of a search through a stream, from the newest message on. It ends after about a second, or after
        `limit` messages that match. Continue with `before` as its `position`, while there is `more`. A search above
        `after` goes upwards. Continue it with `after` as the `position`.

        Args:
            criteria: `filter`, `where`, `after`, `before`, `since` and `until`, see `SearchCriteria`.
        """
        wanted = search_of(**criteria)
        check_limit(limit)
        async with self._bounded(wanted.where, stream) as executor:
            return await store.search(executor, stream, wanted, limit=limit, contents=self._contents)

    async def seek_preview(self, stream: str, name: str, to: int | datetime | str) -> SeekPreview:
        """Return what `seek` would do with a consumer: how many messages would be delivered again, and how many would be
        passed over.

        Counts of more than 50,000 messages are estimated, and say so.

        Raises:
            InvalidInput: a seq after the last one, or a time in the future.
        """
        target = seek_target(to)
        consumer = await self._consumer(stream, name)
        seq = target if isinstance(target, int) else None
        time = target if isinstance(target, datetime) else None
        async with self._bounded(None, stream) as executor:
            return await store.seek_preview(executor, consumer, seq=seq, time=time)

    async def push_status(self, stream: str, name: str) -> PushStatus:
        """Return what a push consumer does: its circuit breaker, the last answers of its endpoint, and how many messages the
        servers that run now have sent.

        Raises:
            InvalidInput: it is not a push consumer.
        """
        spec, _ = await store.consumer_spec(self._database, number := await self._consumer(stream, name))
        if spec.push is None:
            raise InvalidInput(f"The consumer {name!r} of the stream {stream!r} is not a push consumer.")
        at_work = await store.consumer_at_work(self._database, stream, name)
        return PushStatus(
            url=spec.push.url,
            breaker=_breaker(at_work),
            recent=await store.push_answers(self._database, number, limit=KEPT),
            counts=PushCounts(
                ok=sum(one.work.acked for one in at_work), failed=sum(one.work.failed for one in at_work)
            ),
        )

    async def history(
        self,
        stream: str,
        name: str,
        *,
        key: str | None = None,
        seq: int | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> CompletionPage:
        """Return which messages a consumer has completed, from the newest on: when, by which process, after how long, at which
        attempt, and with which outcome. The consumer has them for as long as its setting `history` says.

        Messages of a key are looked for in the stream, in a step of about a second, like those of a search. A message that
        has left the stream is found by its seq.

        Args:
            key: only messages with this key.
            seq: only this message.
            limit: the most entries. With a key, the most messages, of each of which the newest 10 entries are returned.
            before: only entries before these, `next` of the page before.

        Raises:
            InvalidInput: the consumer keeps no history, or an argument is invalid.
        """
        check_limit(limit)
        if key is not None and seq is not None:
            raise InvalidInput("key and seq exclude each other. Give only one of them.", field="seq")
        filters = filters_of(of_key(None, key))
        check_seq("seq", seq)
        position = None if before is None else _position_of(before, of_seqs=key is not None)
        spec, _ = await store.consumer_spec(self._database, number := await self._consumer(stream, name))
        if spec.history is None:
            raise InvalidInput(
                f"The consumer {name!r} of the stream {stream!r} keeps no history. Set how long it is kept, as in history='7d'."
            )
        if seq is not None:
            found = await store.completions_of_messages(self._database, number, [seq], each=limit)
            return CompletionPage(completions=found)
        if filters is None:
            assert not isinstance(position, int)
            return await store.completion_page(self._database, number, limit=limit, before=position)
        assert position is None or isinstance(position, int)
        async with self._bounded(None, stream) as executor:
            wanted = store.Search(filters=filters, before=position)
            step = await store.search(executor, stream, wanted, limit=limit, contents=self._contents)
            found = await store.completions_of_messages(executor, number, [message.seq for message in step.messages])
        return CompletionPage(completions=found, next=str(step.position) if step.more else None)

    async def why(self, stream: str, name: str) -> Diagnosis:
        """Return why a consumer is behind, with the figures that show it: a pause, an open breaker, blocked keys, failures, a
        limit, a key with most of what waits, busy actors, or no process at work. If nothing waits, it says whether the
        filters match nothing, or a publisher has not committed.
        """
        number = await self._consumer(stream, name)
        async with self._bounded(None, stream) as executor:
            info = await store.consumer(executor, stream, name)
            reports = await store.consumer_at_work(executor, stream, name)
            samples = await store.waiting_samples(executor, [number])
            situation = _situation(info, reports, samples.get(number))
            if not situation.waits:
                unmatched = await store.unmatched_messages(executor, number)
                situation = structs.replace(situation, unmatched=unmatched)
        return diagnose(situation)


_LEAST_CLOSED = ("open", "half-open", "closed")


def _breaker(at_work: Sequence[ReportOfConsumer]) -> PushBreaker | None:
    """The circuit breaker of the process where it is the least closed."""
    found = [one for one in at_work if one.work.breaker in _LEAST_CLOSED]
    if not found:
        return None
    least = min(found, key=lambda one: _LEAST_CLOSED.index(str(one.work.breaker)))
    left = least.work.breaker_left
    until = None if left is None else least.seen_at + timedelta(seconds=left)
    return PushBreaker(state=least.work.breaker, until=until)  # type: ignore[arg-type]


def _position_of(before: str, *, of_seqs: bool) -> store.CompletionPosition | int:
    """Read where a page of a history begins: a seq, if messages of a key are looked for. Raises `InvalidInput`."""
    try:
        if not of_seqs:
            return store.CompletionPosition.parse(before)
        check_seq("before", seq := int(before))
    except ValueError:
        raise InvalidInput(
            f"before={before!r:.80} is not `next` of a page with the same key.", field="before"
        ) from None
    return seq


def _situation(info: ConsumerInfo, reports: Sequence[ReportOfConsumer], waiting: Waiting | None) -> Situation:
    finish_rate = None if waiting is None else waiting.finish_rate
    if finish_rate is None and (rates := [one.work.rate for one in reports if one.work.rate is not None]):
        finish_rate = sum(rates)
    until, oldest, at = info.paused_until, info.oldest_unacked_at, None if waiting is None else waiting.at
    return Situation(
        lag=info.lag,
        age=None if oldest is None or at is None else max((at - oldest).total_seconds(), 0.0),
        parked=info.parked,
        blocked=info.blocked,
        replaying=info.replaying,
        in_flight=info.in_flight,
        owners=info.owners,
        paused=until is not None,
        paused_until=None if until is None or until.year >= 9999 else until,
        reports=[one.work for one in reports],
        event_loop=next((one.event_loop for one in reports if one.event_loop is not None), None),
        publish_rate=None if waiting is None else waiting.publish_rate,
        finish_rate=finish_rate,
        waiting=waiting,
    )


def seek_target(to: int | datetime | str) -> int | datetime | None:
    """Check the target of a seek. Returns a seq, which is 0 for the start, a time, or None for the end.

    Raises:
        InvalidInput: it is none.
    """
    if to == "start" or to == "end":
        return 0 if to == "start" else None
    if isinstance(to, datetime):
        return utc(to)
    if isinstance(to, int) and not isinstance(to, bool):
        check_seq("to", to)
        return to
    raise InvalidInput(f"Can't seek to {to!r}. Pass a seq, a datetime, 'start' or 'end'.")
