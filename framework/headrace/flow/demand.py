"""Demand: how many messages to lease, and when to poll again after nothing was found."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import random

import msgspec

BATCH = 1000
"""Largest number of messages per lease call. 500 to 1,000 messages per call cost 4 to 5 µs each, 100 cost 9."""

SPAN = 0.1
"""Local buffer in seconds of work, or longer where a lease call takes longer than half of that. It is enough to hide a
lease call, and too little to keep messages from other workers for long. With less than a call's time, each call would
bring fewer messages than the last one."""

LONGEST_CALL = 1.0
"""A lease call of more seconds counts as one of these."""

HOLD = 64_000_000
"""Largest total size of the buffered payloads in characters, estimated from the size of the latest messages."""

LONGEST_TOKEN_WAIT = 1.0
"""Longest wait in seconds for tokens of a rate limit."""


class PollIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the poll interval, in seconds. Polling is the fallback for notifications.

    Attributes:
        shortest: after messages were found.
        longest: the longest with notifications.
        polling: the longest without notifications.
    """

    shortest: float = 0.005
    longest: float = 1.0
    polling: float = 0.1


POLL_INTERVALS = PollIntervals()


class Demand:
    """How many messages a consumer buffers: the work of a tenth of a second or of two lease calls, but at least twice
    what can be in work."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # the largest number of unsettled messages
        self.target = 1
        self._rate = 0.0
        self._size = 0.0  # characters of a message, recent average
        self._call = 0.0  # seconds that a lease call takes, recent average
        self._at: float | None = None
        self._done = 0

    def observe(self, now: float, done: int, capacity: int) -> None:
        """Update the target. Call it before each `want`.

        Args:
            now: seconds, monotonic.
            done: messages finished since the start.
            capacity: messages that can be in work at the same time.
        """
        if self._at is None:
            self._at, self._done = now, done
        elif now - self._at >= SPAN / 4:
            rate = (done - self._done) / (now - self._at)
            # The rate rises immediately and falls slowly. A pause must not turn large batches into
            # small ones.
            self._rate = max(rate, self._rate * 0.8 + rate * 0.2)
            self._at, self._done = now, done
        fits = HOLD / self._size if self._size else self.limit
        self.target = max(1, int(min(self.limit, fits, max(2 * capacity, self._rate * max(SPAN, 2 * self._call)))))

    def observe_call(self, seconds: float) -> None:
        """Note how long a lease call took, the wait for a connection included."""
        self._call = self._call * 0.8 + min(seconds, LONGEST_CALL) * 0.2

    def observe_sizes(self, payloads: list[str]) -> None:
        """Note the size of messages that have arrived."""
        size = sum(map(len, payloads)) / len(payloads)
        self._size = max(size, self._size * 0.8 + size * 0.2)

    def want(self, waiting: int) -> int:
        """How many messages to lease when `waiting` are buffered. 0 until half of the target is used up."""
        return min(BATCH, self.target - waiting) if waiting <= self.target // 2 else 0


class SlowKeys:
    """When to lease only messages of free keys, because slow handlers work on the keys of all that is buffered.

    Calls for any key would bring more messages of the same keys, as far as their backlog reaches. Calls for free keys, which
    have no message in flight, pass them, and find messages that can start now. Each message that is passed costs two writes
    more, which is little at a low rate.

    Attributes:
        found: whether the keys are slow.
    """

    RATE = 1000
    """Messages a second below which the keys that they wait behind are slow."""
    PATIENCE = 0.25
    """Seconds for which messages are counted to find that rate."""
    SHORTEST, LONGEST = 0.005, 0.25
    """Seconds from a settlement, which may have made a key free, to the next call: doubled by each call that finds nothing."""

    def __init__(self) -> None:
        self.found = False
        self._since: float | None = None  # when the count began
        self._before = 0  # the count then
        self._passing = 0  # messages that calls for free keys have leased
        self._missed = 0

    def end(self) -> None:
        """Note that no message is buffered."""
        self.found = False
        self._since = None

    def observe(self, now: float, leased: int) -> None:
        """Count messages, while the buffer is full and no lane is ready. Those of calls for free keys don't count.

        Args:
            now: seconds, monotonic.
            leased: messages leased since the start.
        """
        count = leased - self._passing
        is_quick = count - self._before >= self.RATE * self.PATIENCE
        if self._since is None or is_quick or now >= self._since + self.PATIENCE:
            self.found = self._since is not None and not is_quick
            self._since, self._before = now, count

    def pause(self, now: float) -> float:
        """Seconds until `observe` may find that the keys are slow. 0 if it has found that, or does not count."""
        return 0.0 if self.found or self._since is None else max(0.0, self._since + self.PATIENCE - now)

    def end_pause(self) -> None:
        """Note that the pause is over, also on a clock that stands still."""
        self._since = -math.inf

    def called(self, leased: int) -> None:
        """Note a call for free keys that leased so many messages."""
        self._passing += leased
        self._missed = 0 if leased else self._missed + 1

    @property
    def delay(self) -> float:
        """Seconds from a settlement to the next call."""
        return float(min(self.SHORTEST * 2.0 ** min(self._missed, 10), self.LONGEST))


class CallPace:
    """How long a consumer that keeps up with its stream leaves new messages to its next lease call.

    Most of a call's cost is fixed, and a call at each notification brings few messages. On a machine with time to spare
    they are handled sooner that way. On a busy one that time is missing elsewhere. There calls take longer than they need.
    So after a call that brought many messages, or large ones, the next one waits for a multiple of the time by which it was
    delayed.

    Network cards pace their interrupts for the same reason: Mogul and Ramakrishnan, TOCS 15 (1997).
    """

    MANY = 32
    """Messages of a call from which on the next one waits, or as much data as costs the same."""
    FACTOR = 8.0
    LONGEST = 0.01  # seconds
    FIXED = 80
    """Messages that cost as much as a call without any, see `python -m benchmarks costs`."""
    CHARACTERS = 1000
    """Characters of payloads that cost as much as another message. A message of 200 takes a call 1.7 µs, one of 4,000 takes
    it 9.6, and one of 10,000 takes it 16.6."""
    RISE = 1.001
    """The growth of the shortest time of a call with each call, so that it adapts to what messages cost."""

    def __init__(self) -> None:
        self._quickest = math.inf  # seconds, divided by the size and `FIXED`

    def rest(self, messages: int, characters: int, took: float) -> float:
        """Return the seconds from the end of a call to the next one.

        Args:
            messages: how many messages the call brought.
            characters: the size of their payloads.
            took: how long it took in seconds.
        """
        if not messages:
            return 0.0
        size = messages + characters // self.CHARACTERS
        cost = size + self.FIXED
        self._quickest = min(took / cost, self._quickest * self.RISE)
        delay = max(0.0, took - cost * self._quickest)
        return min(self.FACTOR * delay, self.LONGEST) if size >= self.MANY else 0.0


def until_token(due_in: float, rate: float, burst: int | None, missed: int = 0) -> float:
    """Seconds to wait for tokens of a rate limit: until the next token, or for several at a time if
    the bucket has room for them. Where other workers take the tokens first, twice as long each time, until half of
    the bucket is full again.

    Args:
        due_in: seconds until the next token.
        rate: messages per second.
        burst: capacity of the bucket, or None for one second's worth.
        missed: how many calls in a row have got nothing after such a wait.
    """
    fills = 1.0 if burst is None else burst / rate
    wait = max(due_in, min(SPAN, fills) / 4, 0.001)
    return min(max(wait, min(wait * 2.0 ** min(missed, 10), fills / 2)), LONGEST_TOKEN_WAIT)


class ScanLimit:
    """How many messages a lease call may examine to find matches, so that neither the call takes long
    nor many calls are needed."""

    LEAST, FIRST, MOST = 1, 2_000, 20_000
    SHORT, LONG = 0.01, 0.025  # seconds

    def __init__(self) -> None:
        self.limit = self.FIRST

    def took(self, seconds: float, looked_at: int) -> None:
        """Adapt to a call that examined `looked_at` messages in `seconds`."""
        if seconds > self.LONG and looked_at:
            self.limit = max(self.LEAST, int(min(self.limit, looked_at) * max(0.25, self.LONG / seconds)))
        elif looked_at >= self.limit and seconds < self.SHORT:
            self.limit = min(self.limit * 2, self.MOST)

    def too_slow(self) -> None:
        """Lower the limit after an aborted call. At least one message takes too long to evaluate. With
        a low limit the others get past it."""
        self.limit = max(self.LEAST, self.limit // 8)


class NotificationBackoff:
    """How long to wait after a notification before the lease call.

    A notification reaches all idle processes, and one of them gets the message. A process that
    finds nothing several times in a row waits longer, and one that leases something waits less. About as many
    processes call at a time as there are messages.

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

    Each process that listens receives a notification of each message, which costs the process and
    the server. So a process that leases hardly any of the messages stops listening and only polls.
    It listens again when a poll finds more messages than the other processes take, or when no other
    process is subscribed.

    A process with too small a share stops with a small probability at each notification, so that
    not all stop at the same time.

    Args:
        random: returns numbers from 0 to 1.
        least_share: the least number of messages leased per notification.
        leaving: the probability to stop listening at a notification, while the share is too small.

    Attributes:
        listen: whether to listen.
    """

    SHARE = 0.25
    LEAVING = 0.025
    WEIGHT = 0.05
    """The weight of the last notification in the moving average of that number."""
    MANY = 10
    """Number of messages in one poll that makes it listen again."""
    POLL = 3.0
    """Poll interval in seconds while it doesn't listen. There are at least `1 / SHARE - 1` other
    processes, which poll at other times."""

    def __init__(
        self, random: Callable[[], float] = random, *, least_share: float = SHARE, leaving: float = LEAVING
    ) -> None:
        self.listen = True
        self._random = random
        self._least_share = least_share
        self._leaving = leaving
        self._share = 1.0

    def notified(self) -> None:
        """A notification has arrived."""
        self._share *= 1 - self.WEIGHT
        if self._share < self._least_share and self._random() < self._leaving:
            self.listen = False

    def fetched(self, messages: int, *, more: bool) -> None:
        """Note a lease call that returned this many messages. `more`: there may be more of them."""
        self._share = min(self._share + self.WEIGHT * messages, 1.0)
        if not self.listen and (more or messages >= self.MANY):
            self.resume()

    def resume(self) -> None:
        """Listen again. The share counts from now on."""
        self.listen = True
        self._share = 1.0


class Poll:
    """The poll interval: short after messages were found, then doubled at each poll.

    Args:
        intervals: its bounds.
    """

    def __init__(self, intervals: PollIntervals = POLL_INTERVALS) -> None:
        self._intervals = intervals
        self._interval = intervals.longest

    def found(self) -> None:
        """Reset the interval, because messages were found."""
        self._interval = self._intervals.shortest

    def slow_down(self) -> None:
        """Wait for the longest interval, because messages that were found before are no sign of others."""
        self._interval = self._intervals.longest

    def rest(self, due_in: float | None, *, polling: bool, longest: float = 0.0) -> float:
        """Seconds to wait for a notification before polling again.

        Args:
            due_in: seconds until a parked message or a lease falls due, if any.
            polling: whether the process receives no notifications.
            longest: the longest interval in seconds when it does receive them, if it is longer
                than usual.
        """
        usual = self._intervals.polling if polling else self._intervals.longest
        interval = min(self._interval, usual)
        self._interval = min(interval * 2, usual)
        if interval >= usual < longest and not polling:
            interval = longest * (0.5 + random())  # random, so that not all poll at the same time
        return interval if due_in is None else min(interval, max(due_in, 0.001))
