"""Dialogs: a confirmation, a place in a stream, a filter text, and a page of text."""

from __future__ import annotations

from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Footer, Input, Static

from headrace.cli.options.times import Place, place
from headrace.cli.problems import UsageProblem


class Confirm(ModalScreen[bool]):
    """Describes an action and asks for confirmation. Only `y` or the button named after the action confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", "Yes"),
        Binding("n,escape,q", "no", "No"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, text: str, yes: str) -> None:
        super().__init__()
        self._title, self._text, self._yes = title, text, yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = Text(self._title).markup
            yield Static(Text(self._text), classes="says")
            with Horizontal(classes="buttons"):
                yield Button(f"{self._yes} (y)", id="yes", variant="warning", compact=True)
                yield Button("Leave it (n)", id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_no(self) -> None:
        self.dismiss(False)


class AskPlace(ModalScreen[Place | None]):
    """Asks for a place in a stream."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave it")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = Text(self._title).markup
            yield Static(Text(self._text), classes="says")
            yield Input(placeholder="start, end, a seq, a time, or how long ago: 1h", id="place")
            yield Static("", classes="wrong")
            yield Static("Enter goes on, Esc leaves it. Nothing is done yet.", classes="faint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            found = place(event.value.strip(), "The place")
        except UsageProblem as problem:
            self.query_one(".wrong", Static).update(Text(str(problem)))
            return
        self.dismiss(found)

    def action_leave(self) -> None:
        self.dismiss(None)


class AskText(ModalScreen[str | None]):
    """Asks for the text that shown names must contain."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave it")]

    def __init__(self, given: str) -> None:
        super().__init__()
        self._given = given

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Show only"
            yield Static("what has this in its name; nothing shows all.", classes="says")
            yield Input(self._given, id="text")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        self.dismiss(None)


class Page(ModalScreen[None]):
    """A page of text, as large as the terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "leave", "Back", key_display="esc")
    ]

    def __init__(self, title: str, text: RenderableType) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="page") as page:
            page.border_title = Text(self._title).markup
            yield Static(self._text)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_leave(self) -> None:
        self.dismiss(None)
