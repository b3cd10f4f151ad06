"""Base of the parts that run beside a server without following its streams."""

from __future__ import annotations

import anyio


class BackgroundPart:
    """A part that is attached to an app, and takes no notice of messages. See `headrace.app.attached`.

    Attributes:
        scope: what `hurry` cancels. `run` sets it, in the event loop.
    """

    scope: anyio.CancelScope | None = None

    def hurry(self) -> None:
        """End now. Work that is cut off leaves nothing."""
        if self.scope is not None:
            self.scope.cancel()
