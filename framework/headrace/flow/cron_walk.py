"""The walk over the due times of a cron expression."""

from __future__ import annotations

from datetime import datetime

from cronsim import CronSim

MAX_STEPS = 5_000
"""The largest number of steps of `cronsim` from one due time to the next. An ordinary walk takes less than a hundred."""

AHEAD = 900
"""Seconds by which a walk without an end goes on."""


class _Endless(Exception):
    """The walk goes in a circle."""


class CronWalk(CronSim):
    """`CronSim`, which never hangs.

    Where the clocks are set back within an hour, as in Pacific/Chatham at 3:45, `CronSim` walks in a circle: backwards
    with `15 */2 * * *`. Then the walk restarts a little later.
    """

    def __next__(self) -> datetime:
        while True:
            began, self._steps = self.dt, 0
            try:
                return super().__next__()
            except _Endless:
                self.dt = began
                super().tick(AHEAD)

    def tick(self, seconds: int = 1) -> None:
        """Go on, as `CronSim` does."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _Endless
        super().tick(seconds)
