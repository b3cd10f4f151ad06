"""Dialogs: confirm an action, enter a place in a stream, enter a filter, read a page of text."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Footer, Input, Static

from headrace.cli.errors import UsageError
from headrace.cli.options.times import Place, parse_place
from headrace.model.text.printing import printable, printable_lines

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """A dialog with a title and a text, which returns an answer. Leaving it returns None."""

    def __init__(self, title: str, text: RenderableType) -> None:
        super().__init__()
        self._title = printable(title)
        self._text = (
            Text(printable_lines(text)) if isinstance(text, str) else text
        )  # names in a text may look like markup

    def action_leave(self) -> None:
        self.dismiss(None)


class Confirm(Dialog[bool]):
    """Describes an action and asks for confirmation. Only `y` or the button named after the action confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", "Yes"),
        Binding("n,escape,q", "no", "No"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, text: str, yes: str) -> None:
        super().__init__(title, text)
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = Text(self._title).markup
            yield Static(self._text, classes="text")
            with Horizontal(classes="buttons"):
                yield Button(f"{self._yes} (y)", id="yes", variant="warning", compact=True)
                yield Button("Cancel (n)", id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_no(self) -> None:
        self.dismiss(False)


class AskPlace(Dialog[Place | None]):
    """Asks for a place in a stream: its start, its end, a seq or a time."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Cancel")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = Text(self._title).markup
            yield Static(self._text, classes="text")
            yield Input(placeholder="start, end, a seq, a time, or a duration such as 1h for an hour ago", id="place")
            yield Static("", classes="error")
            yield Static("Press Enter to continue or Esc to cancel. You will be asked to confirm.", classes="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            found = parse_place(event.value.strip(), "The place")
        except UsageError as problem:
            self.query_one(".error", Static).update(Text(printable(str(problem))))
            return
        self.dismiss(found)


class AskFilter(Dialog[str | None]):
    """Asks for the text that the names of the shown rows must contain."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Cancel")]

    def __init__(self, current: str) -> None:
        super().__init__("Filter", "Show only rows with this text in their name. Leave it empty to show all rows.")
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            yield Static(self._text, classes="text")
            yield Input(self._current, id="text")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class TextPage(Dialog[None]):
    """A page of text, as large as the terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "leave", "Back", key_display="esc")
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="page") as page:
            page.border_title = Text(self._title).markup
            yield Static(self._text)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
