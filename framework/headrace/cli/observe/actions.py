"""The actions on a consumer or a source, each after a confirmation: pause, resume, seek, redrive, cancel."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.screen import Screen

from headrace.cli.observe import source_columns
from headrace.cli.observe.dialogs import AskPlace, Confirm
from headrace.cli.observe.history import ConsumerLine, SourceLine
from headrace.cli.options.times import Place, in_utc
from headrace.cli.output.notices import count
from headrace.model.records import ConsumerInfo

if TYPE_CHECKING:
    from headrace.cli.observe.observer import Observer


class Actions(Screen[None]):
    """A screen on which a consumer can be selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause", tooltip="Pause the consumer or the source, or resume it"),
        Binding("s", "seek", "Seek", tooltip="Move the consumer to another place"),
        Binding("r", "redrive", "Redrive", tooltip="Deliver its dead letters again"),
        Binding("c", "cancel", "Cancel backfill", tooltip="Cancel the source's backfills", show=False),
    ]

    @property
    def observer(self) -> Observer:
        from headrace.cli.observe.observer import Observer

        app = self.app
        assert isinstance(app, Observer)
        return app

    def chosen(self) -> ConsumerLine | None:
        """The selected consumer."""
        raise NotImplementedError

    def chosen_source(self) -> SourceLine | None:
        """The selected source, or None."""
        return None

    async def after(self) -> None:
        """Update the screen after a change."""
        await self.observer.look()

    def _consumer(self) -> ConsumerInfo | None:
        line = self.chosen()
        if line is None:
            self.notify("Choose a consumer first: Tab goes to their table.", severity="warning")
            return None
        return line.info

    async def _confirmed(self, title: str, text: str, yes: str) -> bool:
        return await self.app.push_screen_wait(Confirm(title, text, yes))

    @work
    async def action_pause(self) -> None:
        """Pause the selected source or consumer, or resume it if it is paused."""
        source = self.chosen_source()
        if source is not None:
            if await source_columns.pause(self.observer, source):
                await self.after()
            return
        info = self._consumer()
        if info is None:
            return
        admin, name = self.observer.admin, _named(info)
        if info.paused_until is None:
            text = (
                f"{name} is given nothing more, by any worker, until somebody resumes it. What is in flight"
                f" ({count(info.num_ack_pending, 'message')}) goes on. Messages that are published meanwhile wait."
            )
            if not await self._confirmed("Pause", text, "Pause"):
                return
            done = await self.observer.attempt(admin.pause(info.stream, info.name), f"{name} is paused.")
        else:
            text = f"{name} is given messages again, at once. {count(info.lag, 'message')} at most lie ahead of it."
            if not await self._confirmed("Resume", text, "Resume"):
                return
            done = await self.observer.attempt(admin.resume(info.stream, info.name), f"{name} goes on.")
        if done:
            await self.after()

    @work
    async def action_cancel(self) -> None:
        """Cancel all backfills of a source."""
        source = self.chosen_source()
        if source is None:
            self.notify("Choose a source first: 4 goes to their table.", severity="warning")
        elif await source_columns.cancel(self.observer, source):
            await self.after()

    @work
    async def action_seek(self) -> None:
        """Move the consumer to a place that the user enters."""
        info = self._consumer()
        if info is None:
            return
        name = _named(info)
        where = f"{name} is at {info.position:,}, and the last message is {info.last_seq:,}. Where is it to go on?"
        to = await self.app.push_screen_wait(AskPlace("Seek", where))
        if to is None or not await self._confirmed("Seek", _of_seeking(info, to), "Seek"):
            return
        call = self.observer.admin.seek(info.stream, info.name, to)
        if await self.observer.attempt(call, lambda position: f"{name} goes on after seq {position:,}."):
            await self.after()

    @work
    async def action_redrive(self) -> None:
        """Deliver all of the consumer's dead letters again."""
        info = self._consumer()
        if info is None:
            return
        name = _named(info)
        if not info.dead_letters:
            self.notify(f"{name} has no dead letters.")
            return
        text = (
            f"All {count(info.dead_letters, 'dead letter')} of {name} are delivered again, attempts counted from zero, those of a key in"
            " their order. Keys that they block go on. What fails again is a dead letter again. Those whose message retention has removed stay."
        )
        if not await self._confirmed("Redrive all", text, "Redrive"):
            return
        call = self.observer.admin.redrive(info.stream, info.name)
        if await self.observer.attempt(call, told_of_redriving):
            await self.after()


def told_of_redriving(redriven: int) -> str:
    if not redriven:
        return "Nothing was redriven: retention has removed the messages. Publish their data anew if need be."
    return f"{count(redriven, 'message')} will be delivered again."


def _named(info: ConsumerInfo) -> str:
    return f"{info.name} of {info.stream}"


def _of_seeking(info: ConsumerInfo, to: Place) -> str:
    goal = {"start": "the start of the stream", "end": "the end: only what commits from now on"}.get(str(to))
    if goal is None:
        goal = f"the first message published at {in_utc(to)} or later" if isinstance(to, datetime) else f"seq {to:,}"
    ends = [
        f"{count(number, 'message')} {what}"
        for number, what in (
            (info.num_ack_pending, "in flight"),
            (info.parked, "parked"),
            (info.blocked, "blocked"),
            (info.replaying, "to be replayed"),
        )
        if number
    ]
    lost = "" if not ends else (
        f" {', '.join(ends)}: forgotten, and acks for them change nothing. What of it lies ahead comes again, what lies behind does not."
    )  # fmt: skip
    return (
        f"{_named(info)} moves from {info.position:,} to {goal}.{lost} Its dead letters ({info.dead_letters:,}) stay."
    )
