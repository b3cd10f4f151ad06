"""The reasons for the number of actors of a consumer: a code for programs, and a text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

RATE_LIMITED = "held by rate limit "
"""How the reason of a consumer begins that its rate limit holds back. The limit follows."""

OUTRANKED = "higher priority goes first"
"""The reason of a consumer that waits for those of higher priority in its process."""

REASONS: Mapping[str, str] = {
    # of the governor
    "fixed": "fixed",
    "minimum": "the configured minimum",
    "maximum": "bound of {}",
    "memory": "{:.0%} of memory in use",
    "memory_full": "no more: {:.0%} of memory in use",
    "idle": "at most {} had work",
    "none_finished": "none has finished yet",
    "few_finished": "few have finished yet",
    "stalled": "hardly any finish now",
    "trying_more": "trying: all are busy",
    "trying_fewer": "trying: fewer may do as well",
    "more_kept": "{} more paid off",
    "more_undone": "{} more did not pay",
    "fewer_kept": "{} fewer did as well",
    "fewer_undone": "{} fewer did less",
    # of what limits the consumer beside it
    "deleted": "it was deleted: start this process again to declare it again",
    "breaker": "its circuit breaker is open",
    "priority": OUTRANKED,
    "rate_limit": f"{RATE_LIMITED}{{:g}}/s",
}
"""The codes of all reasons, which are the values of an attribute of a metric, with the texts. Figures take the place of the
braces. A metric has the code, since each text with other figures would be a new series."""


class Reason(NamedTuple):
    """A reason for a number of actors."""

    code: str
    text: str

    @classmethod
    def of(cls, code: str, *figures: Any) -> Reason:
        """Return the reason of a code, with the figures of its text."""
        return cls(code, REASONS[code].format(*figures))
