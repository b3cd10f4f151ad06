"""Options for the settings of a stream or a consumer, for both `add` and `edit`. A setting that isn't
given isn't changed.
"""

from __future__ import annotations

from typing import Any

from headrace.cli.options.from_settings import Options, Special, from_settings
from headrace.cli.options.times import duration, past
from headrace.model.specs import Backoff, ConsumerSpec, StreamSpec


def _backoff(text: str, option: str) -> Backoff:
    if text == "default":
        return Backoff()
    return Backoff(delays=tuple(duration(delay, option) for delay in text.split(",")))


@from_settings(StreamSpec)
class StreamSettings(Options):
    """The stream settings given as options."""


@from_settings(
    ConsumerSpec,
    omit=("push",),
    filters=Special("--filter"),
    ordered=Special(negative="--unordered"),
    backoff=Special(parse=_backoff, more="Write default to return to it."),
)
class ConsumerSettings(Options):
    """The consumer settings given as options."""


@from_settings(
    ConsumerSpec,
    only=("deliver_policy", "start_seq", "start_time"),
    start_time=Special(parse=past, more="1h is an hour ago."),
)
class Beginning(Options):
    """Where a new consumer begins."""

    def given(self) -> dict[str, Any]:
        """The given settings. `start_seq` or `start_time` sets the matching policy. Raises `UsageError`."""
        found = super().given()
        for name in ("start_time", "start_seq"):
            if name in found and "deliver_policy" not in found:
                found["deliver_policy"] = f"by_{name}"
        return found
