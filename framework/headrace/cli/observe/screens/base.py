"""The base of the screens of `headrace observe`."""

from __future__ import annotations

from textual.screen import Screen

from headrace.cli.observe.live_app import LiveApp


class ObserveScreen(Screen[None]):
    """A screen of `headrace observe`."""

    @property
    def observer(self) -> LiveApp:
        """The application, which calls the server or the database."""
        app = self.app
        assert isinstance(app, LiveApp)
        return app
