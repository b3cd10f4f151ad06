"""Database retry: waits and tries again while the database can't be reached.

Connections drop, servers restart, and poolers move. None of this stops a loop. Nor does an error that Headrace doesn't
know, such as that of a trigger or a policy that was added. Only errors that are known to be permanent end a loop, such as
a missing schema or privilege. A loop that only serves maintenance continues after any other failure, too.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from time import monotonic

import anyio

from headrace.model.errors import HeadraceError, StoreError, StoreUnavailable
from headrace.model.log import Log

log = Log("headrace")

MIN_DELAY, MAX_DELAY = 0.05, 2.0
"""Bounds of the delay between tries in seconds."""

LOG_INTERVAL = 60.0
"""Interval in seconds between log records of an error that Headrace doesn't know, while it lasts."""


REPAIR = 60.0
"""Seconds until maintenance is tried again after a failure that needs action, such as a missing privilege."""


class DatabaseRetry:
    """The retry state of one loop: the delay, and whether the outage was logged. An outage is logged
    once, not at every try."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._delay = MIN_DELAY
        self._logged_at = float("-inf")  # when an error that Headrace doesn't know was last logged

    async def wait_after(self, error: StoreUnavailable) -> None:
        """Sleep before the next try, longer at each failure in a row."""
        if isinstance(error, StoreError):
            self._report(error)
        elif self._delay == MIN_DELAY:
            log.warning("database unavailable", task=self._task, error=error, hint="it is retried")
        await anyio.sleep(self._delay * random.uniform(0.5, 1.0))
        self._delay = min(self._delay * 2, MAX_DELAY)

    def _report(self, error: StoreError) -> None:
        """Log an error that Headrace doesn't know.

        An outage ends without help, so one record is enough. An unknown error may need an operator,
        so it is logged repeatedly.
        """
        if (now := monotonic()) >= self._logged_at + LOG_INTERVAL:
            self._logged_at = now
            log.error("database error", task=self._task, error=error, hint="it is retried", exc_info=error)

    def cleared(self) -> None:
        """Reset the delay after a success."""
        if self._delay > MIN_DELAY:
            log.info("database available again", task=self._task)
            self._delay = MIN_DELAY


async def run_with_retry(task: str, loop: Callable[[DatabaseRetry], Awaitable[None]]) -> None:
    """Run `loop` until it returns, and start it again whenever the store was unavailable.

    The loop calls `cleared` after each success.
    """
    database_retry = DatabaseRetry(task)
    while True:
        try:
            return await loop(database_retry)
        except StoreUnavailable as error:
            await database_retry.wait_after(error)


async def maintain(task: str, loop: Callable[[DatabaseRetry], Awaitable[None]], repair: float = REPAIR) -> None:
    """Run a loop of maintenance until it returns, and start it again after an outage and after any other failure.

    So a failure of maintenance stops neither the app nor other maintenance. Each failure is logged.

    Args:
        task: what the loop does, for the log.
        loop: calls `cleared` after each success.
        repair: seconds until the next try after a failure that is no outage.
    """

    async def guarded(database_retry: DatabaseRetry) -> None:
        while True:
            try:
                return await loop(database_retry)
            except Exception as failure:
                if is_outage(failure):
                    raise
                report_failure(task, failure)
                await anyio.sleep(repair)

    await run_with_retry(task, guarded)


def is_outage(failure: BaseException) -> bool:
    """Whether it is an outage, which ends without help. A server error that Headrace doesn't know needs an operator."""
    return isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreError)


def report_failure(task: str, failure: Exception) -> None:
    """Log the failure of maintenance. Headrace's own errors say what to do, so only other errors are logged with their
    traceback."""
    known = isinstance(failure, HeadraceError)
    log.error(
        "maintenance failed",
        task=task,
        error=" ".join([str(failure), *getattr(failure, "__notes__", ())]),
        hint="it is tried again",
        exc_info=None if known else failure,
    )
