"""What else runs in an app's process, beside its consumers: the server's engine, push consumers, sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from headrace.runtime.shared import Shared


class Attached(Protocol):
    """Added by `App.attach`. It starts once the app's own consumers are declared, and ends with them.

    What it raises ends the service, as the death of a consumer does: it should only raise what no retry mends.
    """

    async def run(self, shared: Shared) -> None:
        """Run until `drain`, and then until what was begun has ended."""

    def drain(self) -> None:
        """Begin nothing more, and end. Called while `run` runs, and maybe more than once."""

    def hurry(self) -> None:
        """End at once; what was not finished is given back."""

    def notified(self, stream_id: int) -> None:
        """Something was committed to this stream, somewhere; by its number in the database."""

    def published(self, stream: str) -> None:
        """This process has published to the stream of this name."""

    def hear(self, *, deaf: bool) -> None:
        """From now on `notified` is called, or, deaf, it isn't: then a quicker poll has to do."""


@runtime_checkable
class Telling(Protocol):
    """What is attached may also tell of itself: others see it in `App.statistics`, in metrics, and in `headrace observe`."""

    def tells(self) -> Mapping[str, Any]:
        """What to add to the app's statistics. Its `consumers`, by stream and name, stand beside the app's own."""
