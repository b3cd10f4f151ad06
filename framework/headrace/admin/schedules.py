"""Schedules of periodic messages: list, pause, resume, run and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import MAX_ANSWER_BYTES, check_limit
from headrace.model.errors import InvalidInput
from headrace.model.pages import Page, follow, listing
from headrace.model.schedules import ScheduleInfo
from headrace.model.watching.audit import Change

T = TypeVar("T")


class Schedules(Base):
    """The calls about schedules. An app creates them, see `App.every`."""

    @listing
    async def schedules(self, *, limit: int | None = None) -> AsyncIterator[list[ScheduleInfo]]:
        """List schedules by name, at most `limit`. None for all."""
        check_limit(limit)

        async def read(after: str | None, limit: int) -> Page[ScheduleInfo]:
            return await store.schedules(self._database, after=after, limit=limit, max_bytes=MAX_ANSWER_BYTES)

        async for page in follow(read, lambda schedule: schedule.name, limit=limit):
            yield page

    async def schedule(self, name: str) -> ScheduleInfo:
        """Return one schedule. Raises `UnknownSchedule`."""
        return await store.schedule(self._database, name)

    async def pause_schedule(self, name: str) -> ScheduleInfo:
        """Pause a schedule: nothing is published until it is resumed, by whatever process.

        Returns:
            The schedule after the change. Raises `UnknownSchedule`.
        """
        await self._change_schedule(name, "pause", lambda c: store.pause_schedule(c, name, paused=True))
        return await self.schedule(name)

    async def resume_schedule(self, name: str) -> ScheduleInfo:
        """Resume a schedule with its first due time from now. Those of the pause are not made up for.

        Returns:
            The schedule after the change. Raises `UnknownSchedule`.
        """
        await self._change_schedule(name, "resume", lambda c: store.pause_schedule(c, name, paused=False))
        return await self.schedule(name)

    async def _change_schedule(
        self, name: str, action: str, work: Callable[[store.Executor], Awaitable[T]], **details: Any
    ) -> T:
        stream = (await self.schedule(name)).stream
        return await self._change(
            Change(action=f"schedule.{action}", kind="schedule", name=name, stream=stream, details=details), work
        )

    async def run_schedule(self, name: str) -> ScheduleInfo:
        """Ask for a message now, besides those of the due times. A process that runs the schedule publishes it within
        two seconds. While there is none, the request waits. Several requests that wait are one.

        Returns:
            The schedule after the change. Its `requested_at` is set until the message is published.

        Raises:
            InvalidInput: the schedule is paused.
            UnknownSchedule.
        """
        await self._change_schedule(name, "run", lambda connection: _request(connection, name))
        return await self.schedule(name)

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule. Processes that run it stop, and the next one that starts declares it again. Remove it
        from the app as well. Raises `UnknownSchedule`.
        """
        await self._change_schedule(name, "delete", lambda connection: store.delete_schedule(connection, name))


async def _request(connection: store.Executor, name: str) -> None:
    if not await store.request_schedule(connection, name):
        raise InvalidInput(f"The schedule {name!r} is paused. Resume it with `headrace schedule resume {name}`.")
