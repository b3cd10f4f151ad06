"""Demand: how many messages to ask for, and when to look again after there was nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import random

BATCH = 1000
"""The most that one lease call asks for. 500 to 1,000 messages per call cost 4 to 5 µs each, 100 cost 9."""

SPAN = 0.1
"""Seconds of work to have at hand: enough to hide a lease call, too little to keep messages from other workers for long."""

HOLD = 64_000_000
"""Characters of payload to have at hand at most, as far as the last messages tell their size."""

SHORTEST, LONGEST = 0.005, 1.0
"""Bounds of the poll, in seconds. It stands behind the notifications; where those can't be had, `DEAF` is the longest."""

DEAF = 0.1

JUDGING = 5.0
"""Seconds that judging messages by a condition may take in one lease call; then it is the condition's fault."""


class Demand:
    """How much work a consumer wants to have at hand: what it does in a tenth of a second, and twice what can be in work at least."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # never more than may be unsettled at all
        self.target = 1
        self._rate = 0.0
        self._size = 0.0  # characters of a message, of late
        self._at: float | None = None
        self._done = 0

    def observe(self, now: float, done: int, appetite: int) -> None:
        """`done` messages have been finished since the start; `appetite` can be in work at a time. Call it before each `want`."""
        if self._at is None:
            self._at, self._done = now, done
        elif now - self._at >= SPAN / 4:
            rate = (done - self._done) / (now - self._at)
            # Up at once, down slowly: a pause must not turn large batches into small ones.
            self._rate = max(rate, self._rate * 0.8 + rate * 0.2)
            self._at, self._done = now, done
        fits = HOLD / self._size if self._size else self.limit
        self.target = max(1, int(min(self.limit, fits, max(2 * appetite, self._rate * SPAN))))

    def weigh(self, payloads: list[str]) -> None:
        """Messages with these payloads have come."""
        size = sum(map(len, payloads)) / len(payloads)
        self._size = max(size, self._size * 0.8 + size * 0.2)

    def want(self, waiting: int) -> int:
        """How many to ask for now, when `waiting` are at hand. 0 until half of the target is gone."""
        return min(BATCH, self.target - waiting) if waiting <= self.target // 2 else 0


def until_token(due_in: float, rate: float, burst: int | None) -> float:
    """Seconds to wait for more of a rate limit: until the next message, or for some at a time where the bucket has room for them.

    Args:
        due_in: seconds until there is one.
        rate: messages a second.
        burst: what the bucket holds; None for a second's worth.
    """
    fills = 1.0 if burst is None else burst / rate
    return min(max(due_in, min(SPAN, fills) / 4, 0.001), LONGEST)


class Look:
    """How many messages a lease call may look at to find some that match, so that it takes neither long nor too many calls."""

    LEAST, FIRST, MOST = 1, 2_000, 20_000
    SHORT, LONG = 0.01, 0.025  # seconds

    def __init__(self) -> None:
        self.limit = self.FIRST

    def took(self, seconds: float, looked_at: int) -> None:
        """A call that looked at so many messages took so long."""
        if seconds > self.LONG and looked_at:
            self.limit = max(self.LEAST, int(min(self.limit, looked_at) * max(0.25, self.LONG / seconds)))
        elif looked_at >= self.limit and seconds < self.SHORT:
            self.limit = min(self.limit * 2, self.MOST)

    def too_slow(self) -> None:
        """A call was broken off: one message at least takes too long to judge. Look at few, so that the others get past."""
        self.limit = max(self.LEAST, self.limit // 8)


class NotificationBackoff:
    """How long to wait after a notification before the lease call.

    A notification reaches all idle processes, and one of them gets the message. A process that finds nothing several times in a row waits
    longer, and one that leases something waits less. So about as many processes call at once as there are messages.

    This is the exponential backoff of Ethernet: Metcalfe and Boggs, CACM 19 (1976).

    Args:
        random: returns numbers from 0 to 1.
    """

    IN_A_ROW = 3
    SHORTEST, LONGEST = 0.004, 0.5  # seconds

    def __init__(self, random: Callable[[], float] = random) -> None:
        self._random = random
        self._longest = 0.0
        self._missed = 0

    def found(self) -> None:
        """A lease call returned messages."""
        self._missed = 0
        self._longest = self._longest / 2 if self._longest > self.SHORTEST else 0.0

    def missed(self) -> None:
        """A lease call after a notification returned nothing."""
        self._missed += 1
        if self._missed >= self.IN_A_ROW:
            self._longest = min(max(self._longest * 2, self.SHORTEST), self.LONGEST)

    @property
    def delay(self) -> float:
        """Seconds to wait, drawn at random each time."""
        return self._longest * self._random() if self._longest else 0.0


class ListenPolicy:
    """Whether a consumer benefits from listening for notifications.

    Each process that listens receives a notification of each message, which costs the process and the server. So a process that leases hardly
    any of the messages stops listening and only polls. It listens again when a poll finds more messages than the other processes take, or when
    no other process is subscribed.

    A process with too small a share stops with a small probability at each notification, so that not all stop at the same time.

    Args:
        random: returns numbers from 0 to 1.

    Attributes:
        listen: whether to listen.
    """

    SHARE = 0.25
    """The least number of messages leased per notification, ..."""
    WEIGHT = 0.05
    """... as a moving average, in which the last notification has this weight."""
    LEAVES = 0.025
    """The probability to stop."""
    MANY = 10
    """Messages in one poll, to listen again."""
    POLL = 3.0
    """Seconds between polls while it doesn't listen. There are at least `1 / SHARE - 1` other processes, which poll at other times."""

    def __init__(self, random: Callable[[], float] = random) -> None:
        self.listen = True
        self._random = random
        self._share = 1.0

    def notified(self) -> None:
        """A notification has arrived."""
        self._share *= 1 - self.WEIGHT
        if self._share < self.SHARE and self._random() < self.LEAVES:
            self.listen = False

    def fetched(self, messages: int, *, more: bool) -> None:
        """A lease call returned so many messages, and there may be more."""
        self._share = min(self._share + self.WEIGHT * messages, 1.0)
        if not self.listen and (more or messages >= self.MANY):
            self.resume()

    def resume(self) -> None:
        """Listen again. The share counts from now on."""
        self.listen = True
        self._share = 1.0


class Poll:
    """When to look again: soon after there was something, then ever less often."""

    def __init__(self) -> None:
        self._interval = LONGEST

    def found(self) -> None:
        """There was something."""
        self._interval = SHORTEST

    def rest(self, due_in: float | None, *, deaf: bool, longest: float = LONGEST) -> float:
        """Seconds to wait for a notification before looking again.

        Args:
            due_in: seconds until a parked message or a lease falls due, if any.
            deaf: whether the process doesn't receive notifications.
            longest: the longest interval in seconds when it does.
        """
        interval = min(self._interval, DEAF if deaf else LONGEST)
        self._interval = min(interval * 2, DEAF if deaf else LONGEST)
        if interval >= LONGEST < longest and not deaf:
            interval = longest * (0.5 + random())  # so that not all poll at the same time
        return interval if due_in is None else min(interval, max(due_in, 0.001))
