"""The application of `headrace observe`: its theme, its keys and its first screen."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType

from headrace.cli.observe.live_app import LiveApp
from headrace.cli.observe.screens.dialogs import TextPage
from headrace.cli.observe.screens.help_page import help_page
from headrace.cli.observe.screens.home import HomeScreen


class Observer(LiveApp):
    """Shows all streams, consumers, sources and processes. See `LiveApp` for the arguments."""

    TITLE = "headrace observe"
    CSS_PATH = Path(__file__).with_name("observer.tcss")
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False),
    ]

    def on_mount(self) -> None:
        self.push_screen(HomeScreen())
        self.start_polling()

    def action_help(self) -> None:
        """Show the help page."""
        self.push_screen(TextPage("Help", help_page(self.interval)))
