"""Interface of the parts that run beside an app's consumers: the server's engine, push consumers, sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from headrace.runtime.pipeline.shared import Shared


class Attached(Protocol):
    """A part that `App.attach` adds. It starts once the app's own consumers are declared, and ends with them.

    An error that it raises ends the service, as the failure of a consumer does. It should only
    raise errors that no retry can fix.

    A drain is announced once. A part that starts others therefore checks after each `await` whether the drain has begun,
    and starts nothing then. A part that was started later would wait for a stop that never comes.
    """

    async def run(self, shared: Shared) -> None:
        """Run until `drain`, and then until the work in progress has ended."""

    def drain(self) -> None:
        """Start nothing more, and end. Called while `run` runs, maybe more than once."""

    def hurry(self) -> None:
        """End immediately, and release unfinished messages."""


@runtime_checkable
class FollowsStreams(Protocol):
    """An attached part with consumers of any stream, so that the process listens to all of them."""

    def notified(self, stream_id: int) -> None:
        """Something was committed to the stream with this number, by any process."""

    def published(self, stream: str) -> None:
        """This process has published to the stream with this name."""

    def set_polling(self, *, polling: bool) -> None:
        """Say whether notifications are on. If `polling`, `notified` is not called, and the part must poll more often."""


@runtime_checkable
class HasStatistics(Protocol):
    """An attached part with its own statistics, for `App.statistics`, metrics and `headrace observe`."""

    def app_statistics(self) -> Mapping[str, Any]:
        """The part's entries in the app's statistics. Its `consumers`, by stream and name, are listed beside the
        app's own."""
