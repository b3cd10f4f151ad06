"""The actions on a consumer, each after a confirmation: pause, resume, seek, redrive. On a source: pause, resume, cancel."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType

from headrace.cli.observe.screens import source_actions
from headrace.cli.observe.screens.base import ObserveScreen
from headrace.cli.observe.screens.dialogs import AskPlace, Confirm
from headrace.cli.options.times import Place, in_utc
from headrace.model.records import ConsumerInfo
from headrace.model.text.counting import count
from headrace.model.watching.live import ConsumerRow, SourceRow


class ConsumerActions(ObserveScreen):
    """A screen on which a consumer or a source can be selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause", tooltip="Pause the consumer or the source, or resume it"),
        Binding("s", "seek", "Seek", tooltip="Move the consumer to another position"),
        Binding("r", "redrive", "Redrive", tooltip="Deliver the consumer's dead letters again"),
        Binding("c", "cancel", "Cancel backfill", tooltip="Cancel the source's backfills", show=False),
    ]

    def selected_consumer(self) -> ConsumerRow | None:
        """The selected consumer."""
        raise NotImplementedError

    def selected_source(self) -> SourceRow | None:
        """The selected source, or None."""
        return None

    async def update_after_change(self) -> None:
        """Update the screen after a change."""
        await self.observer.poll()

    async def _consumer(self) -> ConsumerInfo | None:
        """Read the selected consumer, since the figures of the snapshot are some seconds old."""
        row = self.selected_consumer()
        if row is None:
            self.notify("Select a consumer first. Press Tab to go to the consumers.", severity="warning")
            return None
        return await self.observer.fetch(self.observer.admin.consumer(row.stream, row.name))

    async def _confirmed(self, title: str, text: str, yes: str) -> bool:
        return await self.app.push_screen_wait(Confirm(title, text, yes))

    @work
    async def action_pause(self) -> None:
        """Pause the selected source or consumer, or resume it if it is paused."""
        source = self.selected_source()
        if source is not None:
            if await source_actions.pause_or_resume(self.observer, source):
                await self.update_after_change()
            return
        info = await self._consumer()
        if info is None:
            return
        admin, name = self.observer.admin, _full_name(info)
        if info.paused_until is None:
            text = (
                f"This stops delivery to {name} in all processes until you resume it. Messages in flight"
                f" ({info.num_ack_pending:,}) finish. New messages wait."
            )
            if not await self._confirmed("Pause", text, "Pause"):
                return
            done = await self.observer.apply_change(admin.pause(info.stream, info.name), f"{name} is paused.")
        else:
            text = f"This resumes delivery to {name} immediately. At most {count(info.lag, 'message')} are waiting."
            if not await self._confirmed("Resume", text, "Resume"):
                return
            done = await self.observer.apply_change(admin.resume(info.stream, info.name), f"{name} is resumed.")
        if done:
            await self.update_after_change()

    @work
    async def action_cancel(self) -> None:
        """Cancel all backfills of a source."""
        source = self.selected_source()
        if source is None:
            self.notify("Select a source first. Press 4 to go to the sources.", severity="warning")
        elif await source_actions.cancel_backfills(self.observer, source):
            await self.update_after_change()

    @work
    async def action_seek(self) -> None:
        """Move the consumer to a position that the user enters."""
        info = await self._consumer()
        if info is None:
            return
        name = _full_name(info)
        question = (
            f"{name} is at seq {info.position:,}. The last message is seq {info.last_seq:,}. Where should it continue?"
        )
        to = await self.app.push_screen_wait(AskPlace("Seek", question))
        if to is None or not await self._confirmed("Seek", _seek_question(info, to), "Seek"):
            return
        call = self.observer.admin.seek(info.stream, info.name, to)
        if await self.observer.apply_change(call, lambda position: f"{name} continues after seq {position:,}."):
            await self.update_after_change()

    @work
    async def action_redrive(self) -> None:
        """Deliver all of the consumer's dead letters again."""
        info = await self._consumer()
        if info is None:
            return
        name = _full_name(info)
        if not info.dead_letters:
            self.notify(f"{name} has no dead letters.")
            return
        text = (
            f"This delivers all {count(info.dead_letters, 'dead letter')} of {name} again, those of a key in order. Their attempts"
            " count from zero, and the keys that they block are unblocked. A message that fails again becomes a dead letter again."
            " A dead letter stays if retention has removed its message."
        )
        if not await self._confirmed("Redrive all", text, "Redrive"):
            return
        call = self.observer.admin.redrive(info.stream, info.name)
        if await self.observer.apply_change(call, redrive_result):
            await self.update_after_change()


def redrive_result(redriven: int) -> str:
    """Describe the result of a redrive."""
    if not redriven:
        return "Redriven: 0 messages. Retention has removed them from the stream."
    return f"Redriven: {count(redriven, 'message')}."


def _full_name(info: ConsumerInfo) -> str:
    return f"{info.name} of {info.stream}"


def _seek_question(info: ConsumerInfo, to: Place) -> str:
    target = {"start": "the start of the stream", "end": "the end: only messages published from now on"}.get(str(to))
    if target is None:
        target = f"the first message published at {in_utc(to)} or later" if isinstance(to, datetime) else f"seq {to:,}"
    states = [
        f"{number:,} {state}"
        for number, state in (
            (info.num_ack_pending, "in flight"),
            (info.parked, "parked"),
            (info.blocked, "blocked"),
            (info.replaying, "to be replayed"),
        )
        if number
    ]
    forgotten = (
        f" It forgets its current messages ({', '.join(states)}), and acks for them have no effect. Those after the new position"
        " are delivered again, those before it are not."
        if states
        else ""
    )
    return (
        f"This moves {_full_name(info)} from seq {info.position:,} to {target}.{forgotten}"
        f" Its {count(info.dead_letters, 'dead letter')} stay."
    )
